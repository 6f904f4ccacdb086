package nftables

import (
	"context"
	"iter"
	"math"
	"slices"
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
	first  bool // there is nothing yet that a packet could be in the middle of
	lost   int  // elements that go with their set or table
}

// The phases of a plan.
const (
	prepared      = iota // tables, sets
	ranged               // clients and pods, as ranges, that nobody asks for yet
	made                 // chains
	rowsAdded            // backends nobody points at yet
	refusalsGone         // addresses refused but for their fronts, while those are there
	switched             // what points at backends, and backends that change in place
	refusalsAdded        // the same addresses, once their fronts are there
	rowsGone             // backends nobody points at any more, rules of such chains
	setsGone             // before chains: their elements may lead to those
	chainsGone
	lastPhase = chainsGone
)

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
		n += p.phases[i].deleted
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

// transactions packs the steps. Most changes need one or two; the first load is
// made in one, ranges apart, if it is small enough, as nothing is in the middle of
// it. Sets and chains are deleted in transactions of their own: kernels before 6.2
// see in the next one only that nothing leads there any more.
func (p *Plan) transactions(room int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		from := 0
		for _, to := range p.ends(room) {
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

// ends are where transactions end, by phase. Ranges come in one before the chains
// that ask for them: packets see the chains of a transaction at once, and its
// ranges only when the kernel is through with all of it (nf_tables_api.c,
// nf_tables_commit). Until then nobody is known, and so nobody let in.
// Fronts and what is refused beside them share one if it is large enough.
func (p *Plan) ends(room int) []int {
	ends := []int{refusalsGone, rowsGone, setsGone, chainsGone, lastPhase + 1}
	if size(p.phases[refusalsGone:rowsGone]) > room {
		ends = slices.Insert(ends, 1, refusalsAdded)
	}
	if p.first && size(p.phases[:]) <= room {
		ends = []int{lastPhase + 1}
	}
	if p.phases[ranged].n > 0 {
		ends = append([]int{made}, ends...)
	}
	return ends
}

// pack cuts the steps into transactions of about a portion each; steps that
// are tied may make one three times as large.
// Each is used up before the next is made, in the same memory.
func pack(phases []steps, portion int) iter.Seq[*nft.Tx] {
	return func(yield func(*nft.Tx) bool) {
		tx := &nft.Tx{}
		for p := range phases {
			for s := range phases[p].all() {
				s.into(tx)
				most := portion
				if s.tied {
					most = 3 * portion
				}
				if tx.Bytes() < most || s.replaced {
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

func size(phases []steps) int {
	n := 0
	for p := range phases {
		n += phases[p].bytes
	}
	return n
}
