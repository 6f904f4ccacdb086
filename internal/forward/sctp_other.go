//go:build !linux

package forward

// HasSCTP reports whether an Engine forwards SCTP on this host.
func HasSCTP() bool { return false }
