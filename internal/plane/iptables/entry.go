package iptables

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// key names an entry: a chain, or, with a rule, a single rule of a chain that several Services or other programs share.
type key struct {
	table table
	chain string
	rule  string
}

// The value of an entry is its rules, one per line:
//
//   - of a chain, all its rules;
//   - of a chain that Services share, the rules that come last in it;
//   - of a chain of the kernel, the jumps to our chains;
//   - of a single rule, nothing: the key has the rule. If it changes, the old value is the
//     rule that it replaces.
type (
	entry = ledger.Entry[key, string]
	step  = ledger.Step[key, string]
)

// Each of these phases begins a section of a restore, which the programs commit as a whole. Rules that refuse packets
// are added before the rules that lead them elsewhere are deleted, and deleted after those are added. In the phase
// after the section's own chains are emptied, in the next one they are deleted.
const (
	filterAdded   ledger.Phase = 1
	natWritten    ledger.Phase = 2
	filterRemoved ledger.Phase = 5
	mangleRemoved ledger.Phase = 8
)

func sections() []ledger.Phase {
	return []ledger.Phase{filterAdded, natWritten, filterRemoved, mangleRemoved}
}

func (k key) handling() ledger.Handling {
	added := [...]ledger.Phase{filter: filterAdded, nat: natWritten, mangle: mangleRemoved}[k.table]
	removed := [...]ledger.Phase{filter: filterRemoved, nat: natWritten, mangle: mangleRemoved}[k.table]
	switch {
	case !k.ours():
		return ledger.Handling{Add: added, Change: added, Remove: added}
	case k.rule != "":
		return ledger.Handling{Add: added, Change: added, Remove: removed}
	}
	early := strings.HasPrefix(k.chain, endpointPrefix)
	return ledger.Handling{Add: added, Change: added, Empty: removed + 1, Remove: removed + 2, Target: true, Early: early}
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.table, o.table), cmp.Compare(k.chain, o.chain), cmp.Compare(k.rule, o.rule))
}

// inChain returns the key of the chain that the entry is, or is in.
func (k key) inChain() key { return key{table: k.table, chain: k.chain} }

// ours reports whether the chain belongs to kube-proxy, Sluice or kubelet, and not to the kernel or other programs.
func (k key) ours() bool { return strings.HasPrefix(k.chain, "KUBE-") }

// shared reports whether the chain has rules of several Services.
func (k key) shared() bool {
	switch k.chain {
	case services, nodePorts:
		return k.table != mangle
	case external, firewall:
		return k.table == filter
	case portalsContainer, portalsHost, nodePortContainer, nodePortHost:
		return k.table == nat
	}
	return false
}

// inFront reports whether a rule is added in front of the other rules of its chain. In nat
// KUBE-SERVICES and KUBE-PORTALS- other rules must stay last; in chains for NodePorts a rule that
// counts must precede the one that matches all packets.
func (k key) inFront() bool {
	first := slices.Contains([]string{services, portalsContainer, portalsHost}, k.chain) ||
		strings.Contains(k.rule, LoopbackNodePorts)
	return !k.shared() || k.table == nat && first
}

// join returns the value with these rules.
func join(rules ...string) string {
	var b strings.Builder
	for _, rule := range rules {
		b.WriteString(rule)
		b.WriteByte('\n')
	}
	return b.String()
}

// split yields the rules of a value.
func split(value string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rule := range strings.Lines(value) {
			if !yield(rule[:len(rule)-1]) {
				return
			}
		}
	}
}

// count returns how many rules an entry has.
func count(k key, value string) int {
	if k.rule != "" {
		return 1
	}
	return strings.Count(value, "\n")
}

// size returns how many lines a step takes.
func size(s step) int {
	switch {
	case s.Key.rule != "" && s.Op == ledger.Change:
		return 2
	case s.Key.rule != "", s.Key.ours() && (s.Op == ledger.Empty || s.Op == ledger.Remove):
		return 1
	case whole(&s):
		return 1 + count(s.Key, s.New)
	}
	return count(s.Key, s.Old) + count(s.Key, s.New)
}

// whole reports whether a step writes a whole chain, with all its rules.
func whole(s *step) bool {
	return s.Key.rule == "" && s.Key.ours() && (s.Op == ledger.Add || s.Op == ledger.Change && !s.Key.shared())
}
