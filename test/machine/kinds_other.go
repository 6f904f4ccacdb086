//go:build !linux

package machine

// kinds returns the kinds of work that every system has.
func kinds() []kind { return everywhere() }
