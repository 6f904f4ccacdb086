// Package xtables reads the rules of iptables and removes some of them, without
// running a program: what the legacy variant keeps in the kernel's ip_tables and
// ip6_tables, and what the nft variant keeps in nf_tables. It changes nothing
// else: other rules keep their order, their bytes and their counters.
//
// It adds no rules, and understands of a rule only where it leads and its
// comment.
package xtables

import (
	"errors"
	"fmt"
)

// Variant says where a table lives. Both may be in use at a time.
type Variant string

// The variants, as iptables --version names the second.
const (
	Legacy Variant = "legacy"
	NFT    Variant = "nft"
)

// Family is an IP family, by its version number.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// TableID names a table.
type TableID struct {
	Variant Variant
	Family  Family
	Name    string // "filter", "nat", "mangle", "raw" or "security"
}

// String returns the program that shows the table, and its name:
// "ip6tables-legacy nat".
func (id TableID) String() string {
	program := "iptables"
	if id.Family == IPv6 {
		program = "ip6tables"
	}
	return program + "-" + string(id.Variant) + " " + id.Name
}

// Table is a table with all its chains: the built-in ones first in the legacy
// variant, in the order of their making in the nft variant.
type Table struct {
	TableID
	Chains []Chain
}

// Chain is a chain with its rules in their order.
type Chain struct {
	Name    string
	Builtin bool // a hook of the kernel's leads here
	Rules   []Rule
}

// Rule is a rule, as far as it is understood.
type Rule struct {
	Target  string // the chain it leads to, or what it does ("ACCEPT", "DNAT"); "" for nothing
	Jump    bool   // Target is a chain, by jump or goto
	Comment string // of the comment match, or of nft

	// ID tells rules of one chain apart. In the nft variant it is the handle.
	// In the legacy variant it stands for what the rule says, so that two equal
	// rules of a chain have one ID, and it does not matter which is meant.
	ID uint64
}

// ChainRule is a rule of a chain.
type ChainRule struct {
	Chain string
	Rule
}

// Removal says what to take out of a table: single rules, and chains with all
// their rules.
type Removal struct {
	Table  TableID
	Rules  []ChainRule
	Chains []string
}

// Size returns how many rules and chains are named.
func (r Removal) Size() int { return len(r.Rules) + len(r.Chains) }

// String says what is removed from where, in numbers.
func (r Removal) String() string {
	return fmt.Sprintf("%s: %d rules, %d chains", r.Table, len(r.Rules), len(r.Chains))
}

// ErrInUse says that something that stays leads to a chain that should go.
// Nothing was removed from that table; look again and think again.
var ErrInUse = errors.New("the chain is in use")
