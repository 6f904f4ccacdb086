package nftables

import (
	"context"
	"iter"
	"math"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// Plan is a change to the tables, carried out in the order of its phases; after
// each transaction every packet finds its way. What is pointed at and what points
// at it never change in the same one: a packet that makes several look-ups may
// make the first before a transaction counts and the next one after.
type Plan struct {
	kernel Kernel
	phases [lastPhase + 1]steps
	kept   int
	lost   int // elements that go with their set or table
}

// The phases of a plan.
const (
	made      = iota // tables, sets, chains
	rowsAdded        // backends nobody points at yet
	switched         // what points at backends, and backends that change in place
	rowsGone         // backends nobody points at any more, rules of such chains
	setsGone         // before chains: their elements may lead to those
	chainsGone
	lastPhase = chainsGone
)

// step is one thing to do to a table.
type step struct {
	do    verb
	table nft.Table
	set   *nft.Set
	elem  nft.Element
	chain *nft.Chain // with its name only, for flushChain and deleteChain
	tied  bool       // to the next step: both in one transaction, unless that gets too large
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

// steps is a list of steps in blocks: there may be very many, and a list that
// grows by copying would take twice the memory.
type steps struct {
	blocks [][]step
	n      int
}

const perBlock = 256

func (l *steps) add(s step) {
	if l.n%perBlock == 0 {
		l.blocks = append(l.blocks, make([]step, 0, l.nextBlock()))
	}
	last := &l.blocks[len(l.blocks)-1]
	*last = append(*last, s)
	l.n++
}

// nextBlock returns the size of the next block to begin with: most plans are
// small.
func (l *steps) nextBlock() int {
	if l.n == 0 {
		return 4
	}
	return perBlock
}

func (l *steps) at(i int) *step { return &l.blocks[i/perBlock][i%perBlock] }

func (p *Plan) add(phase int, s step) { p.phases[phase].add(s) }

// tie ties the steps of the switched phase from this one on to each other.
func (p *Plan) tie(from int) {
	list := &p.phases[switched]
	for i := from; i < list.n-1; i++ {
		list.at(i).tied = true
	}
}

// dropChain adds the end of a chain. Its rules go first: they may lead to other
// chains and sets that go.
func (p *Plan) dropChain(t nft.Table, name string) {
	c := &nft.Chain{Name: name}
	p.add(rowsGone, step{do: flushChain, table: t, chain: c})
	p.add(chainsGone, step{do: deleteChain, table: t, chain: c})
}

// Steps returns the number of objects and elements to write.
func (p *Plan) Steps() int {
	n := 0
	for i := range p.phases {
		n += p.phases[i].n
	}
	return n
}

// Kept returns the number of elements found in the kernel that stay.
func (p *Plan) Kept() int { return p.kept }

// gone returns the number of elements that go.
func (p *Plan) gone() int {
	n := p.lost
	for i := range p.phases {
		for _, block := range p.phases[i].blocks {
			for j := range block {
				if block[j].do == deleteElement {
					n++
				}
			}
		}
	}
	return n
}

// elements counts what was read.
func elements(seen map[nft.Table]*nft.State) int {
	n := 0
	for _, state := range seen {
		n += state.Count()
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

const unlimited = math.MaxInt

// transactions packs the steps. Most changes need one or two. Sets and chains
// are deleted in transactions of their own: kernels before 6.2 see in the next
// one only that nothing leads there any more.
func (p *Plan) transactions(room int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		from := 0
		for _, to := range []int{switched, rowsGone, setsGone, chainsGone, lastPhase + 1} {
			phases := p.phases[from:to]
			from = to
			portion := room / 4
			if size(phases) <= room {
				portion = unlimited
			}
			for tx := range pack(phases, portion) {
				if !yield(tx) {
					return
				}
			}
		}
	}
}

// pack cuts the steps into transactions of about a portion each; steps that
// are tied may make one three times as large.
// Each is used up before the next is made, in the same memory.
func pack(phases []steps, portion int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		tx := &nft.Tx{}
		for p := range phases {
			list := &phases[p]
			for i := range list.n {
				list.at(i).into(tx)
				most := portion
				if list.at(i).tied {
					most = 3 * portion
				}
				if tx.Bytes() < most || list.replaces(i) {
					continue
				}
				if !yield(tx) {
					return
				}
				tx.Reset()
			}
		}
		if tx.Size() > 0 {
			yield(tx)
		}
	}
}

// replaces reports whether step i and the next replace one element by another.
func (l *steps) replaces(i int) bool {
	if i+1 >= l.n {
		return false
	}
	this, next := l.at(i), l.at(i+1)
	return this.do == deleteElement && next.do == addElement && this.set == next.set && this.elem.Key == next.elem.Key
}

func size(phases []steps) int {
	n := 0
	for p := range phases {
		for i := range phases[p].n {
			s := phases[p].at(i)
			n += s.elem.Bytes()
			if s.chain != nil {
				n += s.chain.Bytes()
			}
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
