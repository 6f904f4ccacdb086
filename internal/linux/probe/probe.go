// Package probe finds out which features of nf_tables, iptables and IPVS this kernel
// supports, and whether this process may use them. It tries features instead of
// comparing version numbers, as distributions backport features and leave out others.
package probe

import "errors"

// The kinds of errors, for callers that treat them differently.
var (
	// ErrPrivilege: this process may not do it.
	ErrPrivilege = errors.New("missing privilege")
	// ErrFeature: this kernel cannot do it.
	ErrFeature = errors.New("missing kernel feature")
)
