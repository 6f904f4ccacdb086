//go:build !linux

package main

// There are no self-tests with processes.
const self = ""

func client() func() error { return nil }
