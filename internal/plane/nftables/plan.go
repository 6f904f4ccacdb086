package nftables

import (
	"context"
	"iter"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// Plan is a change to the tables. It is carried out in one transaction if it
// fits into one, and otherwise phase by phase, in any of which every packet
// finds its way.
type Plan struct {
	kernel Kernel
	phases [lastPhase + 1][]step
}

// The phases of a plan.
const (
	objects0  = iota // tables, sets, chains
	rowsAdded        // backends nobody points at yet
	switched         // what points at backends, and backends that change in place
	rowsGone         // backends nobody points at any more
	objectsGone
	lastPhase = objectsGone
)

// step is one thing to do to a table.
type step struct {
	do    verb
	table nft.Table
	set   *nft.Set
	elem  nft.Element
	chain nft.Chain // with its name only, for deleteChain
}

type verb uint8

const (
	deleteTable verb = iota
	addTable
	addSet
	setChain
	deleteElement
	addElement
	deleteChain
	deleteSet
)

func (p *Plan) add(phase int, s step) { p.phases[phase] = append(p.phases[phase], s) }

// Steps returns the number of objects and elements to write.
func (p *Plan) Steps() int {
	n := 0
	for _, steps := range p.phases {
		n += len(steps)
	}
	return n
}

// String prints the plan as nft commands, one a line.
func (p *Plan) String() string {
	var b strings.Builder
	for tx := range p.transactions(unlimited) {
		b.WriteString(tx.String())
	}
	return b.String()
}

// Apply writes the plan.
func (p *Plan) Apply(ctx context.Context) error {
	for tx := range p.transactions(p.kernel.Room()) {
		if err := p.kernel.Commit(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

const unlimited = 1 << 62

// transactions packs the steps. What is deleted for good comes in one of its
// own: kernels before 6.2 see in the next transaction only that nothing leads
// there any more.
func (p *Plan) transactions(room int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		groups := [][][]step{p.phases[:objectsGone], p.phases[objectsGone:]}
		if bytes(groups[0]) > room {
			groups = nil
			for i := range p.phases {
				groups = append(groups, p.phases[i:i+1])
			}
		}
		for _, group := range groups {
			for tx := range pack(group, room) {
				if !yield(tx) {
					return
				}
			}
		}
	}
}

// pack fills transactions up to the room each has. An element that replaces
// another stays in one with it: the two steps follow each other.
func pack(phases [][]step, room int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		tx := &nft.Tx{}
		for _, steps := range phases {
			for i := range steps {
				steps[i].into(tx)
				if tx.Bytes() < room*3/4 || steps[i].do == deleteElement {
					continue
				}
				if !yield(tx) {
					return
				}
				tx = &nft.Tx{}
			}
		}
		if tx.Size() > 0 {
			yield(tx)
		}
	}
}

func bytes(phases [][]step) int {
	n := 0
	for _, steps := range phases {
		for i := range steps {
			n += steps[i].elem.Bytes() + 512*len(steps[i].chain.Rules)
		}
	}
	return n
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
		tx.SetChain(s.table, s.chain)
	case deleteElement:
		tx.Delete(s.table, *s.set, s.elem)
	case addElement:
		tx.Add(s.table, *s.set, s.elem)
	case deleteChain:
		tx.DeleteChain(s.table, s.chain.Name)
	case deleteSet:
		tx.DeleteSet(s.table, s.set.Name)
	}
}
