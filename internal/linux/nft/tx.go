package nft

import (
	"fmt"
	"slices"
	"strings"
)

// Tx collects the operations of one transaction. Whatever the order of the calls, they are
// executed in the order of their kinds, which always works: create, fill, delete.
type Tx struct {
	ops   [opKinds][]op
	size  int
	bytes int
}

// op is an operation on a table, a set with elements of it, or a chain.
type op struct {
	kind     opKind
	table    Table
	set      Set
	chain    Chain
	elements []Element
}

// opKind says what an operation does. Its values are in the order of execution.
type opKind int

const (
	dropTable opKind = iota
	addTable
	addSet
	addChain  // unless it exists
	fillChain // its rules replace those that the chain has
	deleteElements
	addElements
	flushChain
	deleteSet
	deleteChain

	opKinds = int(deleteChain) + 1
)

func (t *Tx) add(o op, bytes int) {
	t.ops[o.kind] = append(t.ops[o.kind], o)
	t.count(bytes)
}

func (t *Tx) count(bytes int) {
	t.size++
	t.bytes += bytes
}

// all returns the operations in their order.
func (t *Tx) all() []op { return slices.Concat(t.ops[:]...) }

// Reset empties the transaction, and keeps its memory.
func (t *Tx) Reset() {
	var ops [opKinds][]op
	for _, kind := range []opKind{deleteElements, addElements} {
		ops[kind] = t.ops[kind]
		for i := range ops[kind] {
			o := &ops[kind][i]
			clear(o.elements)
			o.elements = o.elements[:0]
		}
	}
	*t = Tx{ops: ops}
}

// Size returns the number of objects and elements the transaction writes.
func (t *Tx) Size() int { return t.size }

// Bytes estimates the size of the transaction in netlink messages.
func (t *Tx) Bytes() int { return t.bytes }

// DeleteTable deletes a table and its contents, before anything else is done; it must exist.
func (t *Tx) DeleteTable(table Table) { t.add(op{kind: dropTable, table: table}, perObject) }

// AddTable creates a table unless it exists.
func (t *Tx) AddTable(table Table) { t.add(op{kind: addTable, table: table}, perObject) }

// AddSet creates a set unless it exists.
func (t *Tx) AddSet(table Table, s Set) { t.add(op{kind: addSet, table: table, set: s}, perObject) }

// SetChain creates a chain unless it exists, and gives it exactly these rules.
func (t *Tx) SetChain(table Table, c Chain) {
	t.ops[addChain] = append(t.ops[addChain], op{kind: addChain, table: table, chain: c})
	t.add(op{kind: fillChain, table: table, chain: c}, c.Bytes())
}

// Add adds an element to a set. An element that exists with the same data is no error; one with other data is.
func (t *Tx) Add(table Table, s Set, e Element) { t.addElement(addElements, table, s, e) }

// Delete deletes an element, which must exist. Deletions come before
// additions, so that deleting and adding a key replaces it.
func (t *Tx) Delete(table Table, s Set, e Element) { t.addElement(deleteElements, table, s, e) }

// addElement appends an element to the operation on its set. There are few sets, and
// those used last are most likely used next.
func (t *Tx) addElement(kind opKind, table Table, s Set, e Element) {
	for i := len(t.ops[kind]) - 1; i >= 0; i-- {
		if o := &t.ops[kind][i]; o.table == table && o.set.Name == s.Name {
			o.elements = append(o.elements, e)
			t.count(e.Bytes())
			return
		}
	}
	t.add(op{kind: kind, table: table, set: s, elements: []Element{e}}, e.Bytes())
}

// FlushChain deletes all rules of a chain, which must exist.
func (t *Tx) FlushChain(table Table, name string) {
	t.add(op{kind: flushChain, table: table, chain: Chain{Name: name}}, perObject)
}

// DeleteChain deletes a chain, which must exist. Nothing may lead to it any more.
func (t *Tx) DeleteChain(table Table, name string) {
	t.add(op{kind: deleteChain, table: table, chain: Chain{Name: name}}, perObject)
}

// DeleteSet deletes a set. No rule may use it any more.
func (t *Tx) DeleteSet(table Table, name string) {
	t.add(op{kind: deleteSet, table: table, set: Set{Name: name}}, perObject)
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

// String prints the transaction, one step a line, as nft commands.
func (t *Tx) String() string {
	var b strings.Builder
	for _, o := range t.all() {
		o.print(&b)
	}
	return b.String()
}

func (o op) print(b *strings.Builder) {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	elements := func(verb string) {
		for _, e := range o.elements {
			line("%s element %s %s { %s }", verb, o.table, o.set.Name, e.text(o.set, o.table.Family))
		}
	}
	switch o.kind {
	case dropTable:
		line("delete table %s", o.table)
	case addTable:
		line("add table %s", o.table)
	case addSet:
		line("add %s %s %s { %s }", o.set.word(), o.table, o.set.Name, o.set.body(o.table.Family))
	case addChain:
		line("add chain %s %s%s", o.table, o.chain.Name, o.chain.Hook.text())
	case fillChain:
		line("flush chain %s %s", o.table, o.chain.Name)
		for _, r := range o.chain.Rules {
			line("add rule %s %s %s", o.table, o.chain.Name, r)
		}
	case deleteElements:
		elements("delete")
	case addElements:
		elements("add")
	case flushChain:
		line("flush chain %s %s", o.table, o.chain.Name)
	case deleteSet:
		line("delete set %s %s", o.table, o.set.Name)
	case deleteChain:
		line("delete chain %s %s", o.table, o.chain.Name)
	}
}

// body is the definition with what nft lists on a line of its own.
func (s Set) body(f Family) string {
	text := definition(s.set(Table{Family: f}))
	if s.Size > 0 {
		text += fmt.Sprintf(" size %d;", s.Size)
	}
	return text
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
	if h.Device != "" {
		return fmt.Sprintf(" { type %s hook ingress device %q priority %d; policy accept; }", h.Type, h.Device, h.Priority)
	}
	return fmt.Sprintf(" { type %s hook %s priority %d; policy accept; }", h.Type, h.Point, h.Priority)
}
