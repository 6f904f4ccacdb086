//go:build !linux

package forward

func newSystem(e *Engine) (system, error) { return newPortable(e), nil }

// fileLimit returns how many file descriptors this process may have: a number that all systems
// allow, and to which package os has raised the limit where it has a lower default.
func fileLimit() int { return 8192 }

// hasSCTP reports that package net has no SCTP sockets.
func hasSCTP() bool { return false }
