// Package iptables runs the programs of iptables in a network namespace:
// PROGRAM-save to read tables, PROGRAM-restore --noflush to change them. Which of
// the two variants is in use on a node is found out as iptables-wrapper of
// Kubernetes does it. IPv4 and IPv6 differ in the program only.
//
// It knows no policy: what a rule is for is the business of who writes it.
package iptables

import (
	"fmt"
	"strings"
	"time"
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

// TableID names a table of a variant.
type TableID struct {
	Variant Variant
	Family  Family
	Name    string // "filter", "nat", "mangle", "raw" or "security"
}

// String returns the program that shows the table, and its name:
// "ip6tables-legacy nat".
func (id TableID) String() string {
	return programName(id.Family, "-", string(id.Variant), " ", id.Name)
}

// Table names a table of a family, such as "nat".
type Table struct {
	Family Family
	Name   string
}

// Chains are what a table holds, by name.
type Chains map[string]Chain

// Chain is a chain with its rules in their order: what stands behind "-A NAME "
// in the output of PROGRAM-save, made comparable by Canonical.
type Chain struct {
	Policy string // of a chain that a hook of the kernel leads to: "ACCEPT"; "-" for others
	Rules  []string
}

// Edit is a change that another program made to chains of ours.
type Edit struct {
	What string // in a few words: "rule of KUBE-SERVICES in nat"
	By   string // the program, as far as it is known: "iptables (thread 812)"

	// Possible means that no change was observed, but that one may have gone
	// unnoticed: what the tables hold is to be compared with what they should
	// hold, as soon as the comparison is cheap.
	Possible bool

	// Since is when the edit was made at the earliest, where tables are polled;
	// zero: it was made now.
	Since time.Time
}

// RestoreError is input that PROGRAM-restore refused. Tables are changed one by
// one, so those before the refused one stay changed.
type RestoreError struct {
	Program   string // "ip6tables-nft-restore"
	Line      int    // of the input, from 1; 0: it did not say, or named a COMMIT
	Rule      string // that line; empty without one
	Reason    string // what the program said, on one line
	Committed int    // how many COMMITs before it were carried out, as far as it said
}

// Error says what was refused and why.
func (e *RestoreError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("%s: %s", e.Program, e.Reason)
	}
	return fmt.Sprintf("%s: %q: %s", e.Program, e.Rule, e.Reason)
}

// programName names a program of a family, such as ip6tables-nft-save.
func programName(f Family, suffixes ...string) string {
	name := "iptables"
	if f == IPv6 {
		name = "ip6tables"
	}
	return name + strings.Join(suffixes, "")
}
