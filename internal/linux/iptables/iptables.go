// Package iptables runs the programs of iptables in a network namespace: PROGRAM-save to read tables, PROGRAM-restore
// --noflush to change them. It uses the variant that is in use on the node, and finds that as iptables-wrapper of
// Kubernetes does. IPv4 and IPv6 differ only in the program. The package knows no policy: callers decide about rules.
package iptables

import (
	"fmt"
	"net/netip"
)

// Variant is where tables live. Both may be in use at a time.
type Variant string

// The variants, as iptables --version names the second.
const (
	Legacy Variant = "legacy" // ip_tables and ip6_tables
	NFT    Variant = "nft"    // nf_tables
)

// Family is an IP family, by its version number.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Program returns the name of the program of a family: "ip6tables".
func (f Family) Program() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Loopback returns the range of the loopback addresses, as the programs print it.
func (f Family) Loopback() string {
	if f == IPv6 {
		return "::1/128"
	}
	return "127.0.0.0/8"
}

// Sources returns a match for each origin of packets: an interface, all interfaces with a prefix, or the ranges of
// addresses of the family.
func (f Family) Sources(iface, prefix string, ranges []netip.Prefix) []string {
	switch {
	case iface != "":
		return []string{"-i " + iface}
	case prefix != "":
		return []string{"-i " + prefix + "+"}
	}
	var list []string
	for _, r := range ranges {
		if r.Addr().Is4() == (f == IPv4) {
			list = append(list, Source(r))
		}
	}
	return list
}

// Source returns the match of packets from a range of addresses. It is empty for the range of all.
func Source(r netip.Prefix) string {
	if r.Bits() == 0 {
		return ""
	}
	return "-s " + r.Masked().String()
}

// TableID names a table of a variant.
type TableID struct {
	Variant Variant
	Family  Family
	Name    string // "filter", "nat", "mangle", "raw" or "security"
}

// String returns the program that shows the table, and its name: "ip6tables-legacy nat".
func (id TableID) String() string {
	return id.Family.Program() + "-" + string(id.Variant) + " " + id.Name
}

// Table names a table of a family, such as "nat".
type Table struct {
	Family Family
	Name   string
}

// Chains are the chains of a table, by name.
type Chains map[string]Chain

// Chain is a chain with its rules in their order: the text after "-A NAME " in the output
// of PROGRAM-save, in the spelling of Canonical.
type Chain struct {
	Policy string // of a chain that a hook of the kernel leads to: "ACCEPT"; "-" for others
	Rules  []string
}

// Builtin reports whether a hook of the kernel leads to the chain.
func (c Chain) Builtin() bool { return c.Policy != "-" }

// Edit is a change that another program made to chains of the proxy.
type Edit struct {
	What string // in a few words: "rule of KUBE-SERVICES in nat"
	By   string // the program, as far as it is known: "iptables (thread 812)"

	// Unclear means that a table was changed, but perhaps only rules of other programs: it is an edit if a comparison of
	// the tables with their expected contents repairs something.
	Unclear bool
	// Possible means that no change was observed, but that one may have been missed: the
	// tables should be compared as soon as that is cheap.
	Possible bool
}

// RestoreError is the error of input that PROGRAM-restore refused. Tables are committed
// one by one: those before the refused one stay changed.
type RestoreError struct {
	Program   string // "ip6tables-nft-restore"
	Line      int    // of the input, from 1; 0: not printed
	Rule      string // that line; empty without one, and if it is a COMMIT
	Reason    string // the message of the program, on one line
	Committed int    // how many COMMITs before that line were carried out
}

// Error names the refused rule and the reason.
func (e *RestoreError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("%s: %s", e.Program, e.Reason)
	}
	return fmt.Sprintf("%s: %q: %s", e.Program, e.Rule, e.Reason)
}
