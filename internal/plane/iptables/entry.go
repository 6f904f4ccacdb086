package iptables

import (
	"cmp"
	"iter"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// key names an entry: a chain, or, with a rule, a single rule of a chain that
// Services share.
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
//   - of a single rule, nothing, or that rule and the ones right before it.
type (
	entry = ledger.Entry[key, string]
	step  = ledger.Step[key, string]
)

// The phases, in the order in which steps are written.
const (
	filterAdded ledger.Phase = iota + 1
	natAdded
	natDeleted
	natEmptied
	natGone
	filterDeleted
	filterEmptied
	filterGone
	mangleDeleted
	mangleEmptied
	mangleGone
)

// sections are the first phases of what a restore commits as a whole. Rules that
// refuse packets are added before the rules that lead them elsewhere are deleted,
// and deleted after those are added.
func sections() []ledger.Phase {
	return []ledger.Phase{filterAdded, natAdded, filterDeleted, mangleDeleted}
}

func layout() ledger.Layout[key] { return ledger.Layout[key]{Kind: key.kind, Order: key.compare} }

func (k key) kind() ledger.Kind {
	kind := ledger.Kind{Add: natAdded, Change: natAdded, Remove: natDeleted}
	emptied, gone := natEmptied, natGone
	switch k.table {
	case nat:
	case filter:
		kind = ledger.Kind{Add: filterAdded, Change: filterAdded, Remove: filterDeleted}
		emptied, gone = filterEmptied, filterGone
	case mangle:
		kind = ledger.Kind{Add: mangleDeleted, Change: mangleDeleted, Remove: mangleDeleted}
		emptied, gone = mangleEmptied, mangleGone
	}
	switch {
	case !k.ours():
		kind.Remove = kind.Add
	case k.rule == "":
		kind.Empty, kind.Remove, kind.Target = emptied, gone, true
		kind.Early = strings.HasPrefix(k.chain, endpointPrefix)
	}
	return kind
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.table, o.table), cmp.Compare(k.chain, o.chain), cmp.Compare(k.rule, o.rule))
}

// ours reports whether the chain belongs to proxies or kubelet, and not to the kernel
// or to others.
func (k key) ours() bool { return strings.HasPrefix(k.chain, "KUBE-") }

// shared reports whether it is a chain that has rules of several Services.
func (k key) shared() bool {
	switch k.chain {
	case services, nodePorts:
		return k.table != mangle
	case external, firewall:
		return k.table == filter
	}
	return false
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

// rules yields the rules of an entry with a value.
func (k key) rules(value string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if k.rule != "" && value == "" {
			yield(k.rule)
			return
		}
		for rule := range strings.Lines(value) {
			if !yield(rule[:len(rule)-1]) {
				return
			}
		}
	}
}

// count returns how many rules an entry with a value has.
func (k key) count(value string) int {
	if k.rule != "" && value == "" {
		return 1
	}
	return strings.Count(value, "\n")
}

// size returns how many lines a step takes.
func size(s step) int {
	k, n := s.Key, 0
	switch {
	case k.rule == "" && k.ours() && (s.Op == ledger.Empty || s.Op == ledger.Remove):
		return 1
	case whole(s):
		return 1 + k.count(s.New)
	case s.Op != ledger.Remove:
		n = k.count(s.New)
	}
	if s.Op != ledger.Add {
		n += k.count(s.Old)
	}
	return n
}

// whole reports whether a step writes a chain anew, with all its rules.
func whole(s step) bool {
	if s.Key.rule != "" || !s.Key.ours() {
		return false
	}
	return s.Op == ledger.Add || s.Op == ledger.Change && !s.Key.shared()
}

// front reports whether single rules are added in front of the chain's other rules,
// so that those of a Service stay in their order: in nat KUBE-SERVICES others come
// last, and in nat KUBE-NODEPORTS a rule that counts comes before the one that takes
// all.
func (k key) front() bool { return k.table == nat && k.rule != "" && k.shared() }
