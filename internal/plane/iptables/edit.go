package iptables

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// edit is what to write for one Service, or, without one, for what all share.
type edit struct {
	service cluster.Name
	chains  []chain   // written anew
	ordered []command // after them, in this order
	add     []line    // at an end of a chain that is shared, whichever does not matter
	del     []line    // of such a chain
	gone    []ref     // chains that go
	emptied []ref     // chains that will
}

// command is a line with what to do with it.
type command struct {
	verb string // "-A", "-I", "-D"
	line
}

// ref names a chain.
type ref struct {
	table table
	name  string
}

// lines counts what an edit writes, about.
func (e *edit) lines() int {
	n := len(e.ordered) + len(e.add) + len(e.del) + 2*len(e.gone) + len(e.emptied)
	for _, c := range e.chains {
		n += 1 + len(c.rules)
	}
	return n
}

// rulesIn counts the rules of a table that an edit writes.
func (e *edit) rulesIn(t table) int {
	n := 0
	for _, c := range e.chains {
		if c.table == t {
			n += len(c.rules)
		}
	}
	return n + count(e.ordered, func(c command) bool { return c.table == t && c.verb != "-D" }) +
		count(e.add, func(l line) bool { return l.table == t })
}

func count[T any](list []T, is func(T) bool) int {
	n := 0
	for _, item := range list {
		if is(item) {
			n++
		}
	}
	return n
}

// section is a part of a restore, which its COMMIT makes count as a whole.
type section struct {
	table    table
	removals removals
}

// sections are those of a restore, in order. What refuses packets comes before
// what leads them elsewhere goes, and goes after what leads them elsewhere has
// come.
func sections() []section {
	return []section{{filter, without}, {nat, with}, {filter, only}, {mangle, with}}
}

// compose prints edits as the input of one restore, from a section on, and says
// which sections have something in them.
func compose(edits []edit, from int) (input []byte, present []int) {
	var b bytes.Buffer
	w := writer{&b}
	for i, s := range sections() {
		before := b.Len()
		if i >= from {
			w.section(s.table, edits, s.removals)
		}
		if b.Len() > before {
			present = append(present, i)
		}
	}
	return b.Bytes(), present
}

// removals says whether rules and chains that go are in a section.
type removals int

const (
	with removals = iota
	without
	only
)

// writer prints the input of a restore.
type writer struct{ *bytes.Buffer }

func (w writer) line(words ...string) {
	for i, word := range words {
		if i > 0 {
			w.WriteByte(' ')
		}
		w.WriteString(word)
	}
	w.WriteByte('\n')
}

// section prints what is to be done in a table; nothing if that is nothing.
func (w writer) section(t table, edits []edit, r removals) {
	start := w.Len()
	w.line("*" + t.String())
	empty := w.Len()
	if r != without {
		w.empty(t, edits)
	}
	if r != only {
		w.additions(t, edits)
	}
	if r != without {
		w.removals(t, edits)
	}
	if w.Len() == empty {
		w.Truncate(start)
		return
	}
	w.line("COMMIT")
}

// empty takes the rules out of the chains that go: they may lead to each other.
func (w writer) empty(t table, edits []edit) {
	for i := range edits {
		for _, g := range slices.Concat(edits[i].emptied, edits[i].gone) {
			if g.table == t {
				w.line(":"+g.name, "-", "[0:0]")
			}
		}
	}
}

// additions prints the names of chains first, as rules lead to them. Chains are
// in the order of their names: libiptc keeps them so and looks each of them up
// among its neighbours, which takes a quarter of the time off a large first load.
func (w writer) additions(t table, edits []edit) {
	chains := chainsOf(t, edits)
	for _, c := range chains {
		w.line(":"+c.name, "-", "[0:0]")
	}
	for _, c := range chains {
		for _, rule := range c.rules {
			w.line("-A", c.name, rule)
		}
	}
	for i := range edits {
		w.additionsOf(t, &edits[i])
	}
	for i := range slices.Backward(edits) {
		w.insertions(t, &edits[i])
	}
}

// chainsOf returns what is written anew in a table, by name.
func chainsOf(t table, edits []edit) []chain {
	var chains []chain
	for i := range edits {
		for _, c := range edits[i].chains {
			if c.table == t {
				chains = append(chains, c)
			}
		}
	}
	slices.SortFunc(chains, func(a, b chain) int { return cmp.Compare(a.name, b.name) })
	return chains
}

func (w writer) additionsOf(t table, e *edit) {
	for _, c := range e.ordered {
		if c.table == t {
			w.line(c.verb, c.chain, c.rule)
		}
	}
	for _, l := range e.add {
		if l.table == t && !l.first() {
			w.line("-A", l.chain, l.rule)
		}
	}
}

// insertions prints what comes to the front of a chain, the last first.
func (w writer) insertions(t table, e *edit) {
	for _, l := range slices.Backward(e.add) {
		if l.table == t && l.first() {
			w.line("-I", l.chain, l.rule)
		}
	}
}

// first reports whether a rule is added at the front, so that rules of a Service
// stand in their order: in one chain others stay last, in the other what counts
// connections to loopback addresses comes before what takes them all.
func (l line) first() bool { return l.table == nat && (l.chain == services || l.chain == nodePorts) }

func (w writer) removals(t table, edits []edit) {
	for i := range edits {
		for _, l := range edits[i].del {
			if l.table == t {
				w.line("-D", l.chain, l.rule)
			}
		}
	}
	for i := range edits {
		for _, g := range edits[i].gone {
			if g.table == t {
				w.line("-X", g.name)
			}
		}
	}
}
