package nftables

import (
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// step is one thing to do to a table.
type step struct {
	do    verb
	table nft.Table
	set   *nft.Set
	elem  nft.Element
	chain *nft.Chain // with its name only, for flushChain and deleteChain

	tied     bool // to the next step: both in one transaction, unless that gets too large
	replaced bool // the next step adds an element with the key of the one this deletes
}

type verb uint8

const (
	deleteTable verb = iota
	addTable
	addSet
	setChain
	deleteElement
	addElement
	flushChain
	deleteChain
	deleteSet
)

// ofElement reports whether the step is about an element.
func (v verb) ofElement() bool { return v == deleteElement || v == addElement }

// steps is a list of steps. There may be very many, so they are packed: an
// element takes a record and its text, neither with pointers.
type steps struct {
	n       int
	bytes   int // estimated size in transactions
	deleted int // elements

	sets    []place // of steps about elements: few
	objects []place // of all other steps, in their order
	blocks  []block
	last    step
}

// place is what a step is about besides an element.
type place struct {
	table nft.Table
	set   *nft.Set
	chain *nft.Chain
}

// block holds some of the steps.
type block struct {
	records []record
	text    []byte // of the elements, one after the other
	objects int    // how many steps in blocks before are not about elements
}

// record is a step without what it is about. In the kernel no part of an
// element is longer than 255 bytes.
type record struct {
	do                          verb
	set                         uint8 // in steps.sets
	key, end, data, to, comment uint8 // how long each is
	tied, replaced              bool
}

const perBlock = 256

func (l *steps) add(s step) {
	b := l.room()
	r := record{do: s.do}
	if s.do.ofElement() {
		e := &s.elem
		r.set = l.place(&s)
		r.key, r.end, r.data = uint8(len(e.Key)), uint8(len(e.End)), uint8(len(e.Data))
		r.to, r.comment = uint8(len(e.Goto)), uint8(len(e.Comment))
		b.text = append(append(append(b.text, e.Key...), e.End...), e.Data...)
		b.text = append(append(b.text, e.Goto...), e.Comment...)
	} else {
		l.objects = append(l.objects, place{s.table, s.set, s.chain})
	}
	if s.do == addElement && l.last.do == deleteElement && l.last.set == s.set && l.last.elem.Key == s.elem.Key {
		l.at(l.n - 1).replaced = true
	}
	b.records = append(b.records, r)
	l.count(&s)
}

// room returns the block to append to.
func (l *steps) room() *block {
	if l.n%perBlock > 0 {
		return &l.blocks[len(l.blocks)-1]
	}
	b := block{objects: len(l.objects)}
	if l.n > 0 { // most plans are small
		before := l.blocks[len(l.blocks)-1].text
		b.records, b.text = make([]record, 0, perBlock), make([]byte, 0, len(before)+len(before)/8)
	}
	l.blocks = append(l.blocks, b)
	return &l.blocks[len(l.blocks)-1]
}

// place finds the set of a step about an element, most likely one of the last.
func (l *steps) place(s *step) uint8 {
	p := place{table: s.table, set: s.set}
	for i, known := range slices.Backward(l.sets) {
		if known == p {
			return uint8(i)
		}
	}
	l.sets = append(l.sets, p)
	return uint8(len(l.sets) - 1)
}

func (l *steps) count(s *step) {
	l.n++
	l.last = *s
	if s.do == deleteElement {
		l.deleted++
	}
	l.bytes += s.elem.Bytes()
	if s.chain != nil {
		l.bytes += s.chain.Bytes()
	}
}

func (l *steps) at(i int) *record { return &l.blocks[i/perBlock].records[i%perBlock] }

// all returns the steps in their order.
func (l *steps) all() iter.Seq[step] {
	return func(yield func(step) bool) {
		for i := range l.blocks {
			b := &l.blocks[i]
			text, objects := string(b.text), l.objects[b.objects:]
			for _, r := range b.records {
				s := step{do: r.do, tied: r.tied, replaced: r.replaced}
				var p place
				if r.do.ofElement() {
					p = l.sets[r.set]
					s.elem, text = r.element(text)
				} else {
					p, objects = objects[0], objects[1:]
				}
				s.table, s.set, s.chain = p.table, p.set, p.chain
				if !yield(s) {
					return
				}
			}
		}
	}
}

// element cuts an element off the beginning of the text.
func (r record) element(text string) (e nft.Element, rest string) {
	cut := func(n uint8) string {
		part := text[:n]
		text = text[n:]
		return part
	}
	e.Key, e.End, e.Data, e.Goto, e.Comment = cut(r.key), cut(r.end), cut(r.data), cut(r.to), cut(r.comment)
	return e, text
}

func (s *step) into(tx *nft.Tx) {
	switch s.do {
	case deleteTable:
		tx.DeleteTable(s.table)
	case addTable:
		tx.AddTable(s.table)
	case addSet:
		tx.AddSet(s.table, *s.set)
	case setChain:
		tx.SetChain(s.table, *s.chain)
	case deleteElement:
		tx.Delete(s.table, *s.set, s.elem)
	case addElement:
		tx.Add(s.table, *s.set, s.elem)
	case flushChain:
		tx.FlushChain(s.table, s.chain.Name)
	case deleteChain:
		tx.DeleteChain(s.table, s.chain.Name)
	case deleteSet:
		tx.DeleteSet(s.table, s.set.Name)
	}
}
