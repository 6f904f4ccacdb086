//go:build !linux

package sysctl

// within runs fn; only Linux has network namespaces.
func within(_ int, fn func() error) error { return fn() }

func isReadOnly(error) bool { return false }
func isInvalid(error) bool  { return false }
