package nft

import (
	"fmt"
	"slices"
	"strings"
)

// Tx collects the operations of one transaction. Whatever the order of the calls, they are
// executed in this order, which always works: create, fill, delete.
type Tx struct {
	dropped []Table
	tables  []Table
	sets    []setIn
	chains  []chainIn // created unless they exist; these rules replace those they have
	deletes []bucket
	adds    []bucket
	flushed []goneIn
	gone    []goneIn
	size    int
	bytes   int
}

type setIn struct {
	table Table
	set   Set
}

type chainIn struct {
	table Table
	chain Chain
}

type goneIn struct {
	table Table
	name  string
	chain bool
}

// bucket holds elements of one set.
type bucket struct {
	table    Table
	set      Set
	elements []Element
}

// Reset empties the transaction, and keeps its memory.
func (t *Tx) Reset() {
	for _, buckets := range [][]bucket{t.deletes, t.adds} {
		for i := range buckets {
			clear(buckets[i].elements)
			buckets[i].elements = buckets[i].elements[:0]
		}
	}
	*t = Tx{deletes: t.deletes, adds: t.adds}
}

// Size returns the number of objects and elements the transaction writes.
func (t *Tx) Size() int { return t.size }

// needed returns the tables that the transaction does not create itself.
func (t *Tx) needed() []Table {
	var list []Table
	need := func(table Table) {
		if !slices.Contains(t.tables, table) && !slices.Contains(list, table) {
			list = append(list, table)
		}
	}
	for _, s := range t.sets {
		need(s.table)
	}
	for _, c := range t.chains {
		need(c.table)
	}
	for _, b := range slices.Concat(t.deletes, t.adds) {
		if len(b.elements) > 0 { // Reset leaves empty ones
			need(b.table)
		}
	}
	for _, g := range slices.Concat(t.flushed, t.gone) {
		need(g.table)
	}
	return list
}

// namesChains reports whether the transaction creates a chain or adds an element that leads to one.
func (t *Tx) namesChains() bool {
	leads := func(e Element) bool { return e.Goto != "" }
	return len(t.chains) > 0 || slices.ContainsFunc(t.adds, func(b bucket) bool {
		return slices.ContainsFunc(b.elements, leads)
	})
}

// Bytes estimates the size of the transaction in netlink messages.
func (t *Tx) Bytes() int { return t.bytes }

// DeleteTable deletes a table and its contents, before anything else is done; it
// must exist.
func (t *Tx) DeleteTable(table Table) {
	t.dropped = append(t.dropped, table)
	t.count(perObject)
}

// AddTable creates a table unless it exists.
func (t *Tx) AddTable(table Table) {
	t.tables = append(t.tables, table)
	t.count(perObject)
}

// AddSet creates a set unless it exists.
func (t *Tx) AddSet(table Table, s Set) {
	t.sets = append(t.sets, setIn{table, s})
	t.count(perObject)
}

// SetChain creates a chain unless it exists, and gives it exactly these rules.
func (t *Tx) SetChain(table Table, c Chain) {
	t.chains = append(t.chains, chainIn{table, c})
	t.count(c.Bytes())
}

// Add adds an element to a set. An element that exists with the same data is no
// error; one with other data is.
func (t *Tx) Add(table Table, s Set, e Element) {
	t.adds = into(t.adds, table, s, e)
	t.count(e.Bytes())
}

// Delete deletes an element, which must exist. Deletions come before
// additions, so that deleting and adding a key replaces it.
func (t *Tx) Delete(table Table, s Set, e Element) {
	t.deletes = into(t.deletes, table, s, e)
	t.count(e.Bytes())
}

// FlushChain deletes all rules of a chain, which must exist.
func (t *Tx) FlushChain(table Table, name string) {
	t.flushed = append(t.flushed, goneIn{table, name, true})
	t.count(perObject)
}

// DeleteChain deletes a chain, which must exist. Nothing may lead to it any more.
func (t *Tx) DeleteChain(table Table, name string) {
	t.gone = append(t.gone, goneIn{table, name, true})
	t.count(perObject)
}

// DeleteSet deletes a set. No rule may use it any more.
func (t *Tx) DeleteSet(table Table, name string) {
	t.gone = append(t.gone, goneIn{table, name, false})
	t.count(perObject)
}

func (t *Tx) count(bytes int) {
	t.size++
	t.bytes += bytes
}

// perObject is the size of a message about a chain, a set or a rule: in the transaction, or
// as an answer in the receive buffer, where the kernel counts 768 bytes for one.
const perObject = 1024

// Bytes estimates the size of the chain in a transaction.
func (c Chain) Bytes() int { return perObject * (2 + len(c.Rules)) }

// Bytes estimates the size of the element in a message.
func (e Element) Bytes() int {
	return 48 + len(e.Key) + len(e.End) + len(e.Data) + len(e.Goto) + len(e.Comment)
}

// into appends an element to the bucket of its set. There are few sets, and
// those used last are most likely used next.
func into(buckets []bucket, table Table, s Set, e Element) []bucket {
	for i := len(buckets) - 1; i >= 0; i-- {
		if b := &buckets[i]; b.table == table && b.set.Name == s.Name {
			b.elements = append(b.elements, e)
			return buckets
		}
	}
	return append(buckets, bucket{table, s, []Element{e}})
}

// String prints the transaction, one step a line, as nft commands.
func (t *Tx) String() string {
	var b strings.Builder
	for _, table := range t.dropped {
		fmt.Fprintf(&b, "delete table %s\n", table)
	}
	for _, table := range t.tables {
		fmt.Fprintf(&b, "add table %s\n", table)
	}
	for _, s := range t.sets {
		fmt.Fprintf(&b, "add %s %s %s { %s }\n", s.set.word(), s.table, s.set.Name, s.set.body(s.table.Family))
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "add chain %s %s%s\n", c.table, c.chain.Name, c.chain.Hook.text())
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "flush chain %s %s\n", c.table, c.chain.Name)
		for _, r := range c.chain.Rules {
			fmt.Fprintf(&b, "add rule %s %s %s\n", c.table, c.chain.Name, r)
		}
	}
	for _, d := range t.deletes {
		d.print(&b, "delete")
	}
	for _, a := range t.adds {
		a.print(&b, "add")
	}
	for _, g := range t.flushed {
		fmt.Fprintf(&b, "flush chain %s %s\n", g.table, g.name)
	}
	for _, g := range t.gone {
		word := "set"
		if g.chain {
			word = "chain"
		}
		fmt.Fprintf(&b, "delete %s %s %s\n", word, g.table, g.name)
	}
	return b.String()
}

func (b bucket) print(w *strings.Builder, verb string) {
	for _, e := range b.elements {
		fmt.Fprintf(w, "%s element %s %s { %s }\n", verb, b.table, b.set.Name, e.text(b.set, b.table.Family))
	}
}

// body is the definition with what nft lists on a line of its own.
func (s Set) body(f Family) string {
	if s.Size == 0 {
		return s.definition(f)
	}
	return fmt.Sprintf("%s size %d;", s.definition(f), s.Size)
}

func (s Set) word() string {
	if s.Data != nil {
		return "map"
	}
	return "set"
}

func (h *Hook) text() string {
	if h == nil {
		return ""
	}
	return fmt.Sprintf(" { type %s hook %s priority %d; policy accept; }", h.Type, h.Point, h.Priority)
}
