package ledger

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Steps returns how much the plan writes, in the unit of Writer.Size.
func (p *Plan[K, V]) Steps() int {
	n := p.size(p.rewritten())
	for _, g := range p.groups() {
		n += g.size
	}
	return n
}

// Kept returns the number of entries that a comparison found and leaves as they are.
func (p *Plan[K, V]) Kept() int { return p.kept }

// String prints the plan in the mechanism's own language.
func (p *Plan[K, V]) String() string {
	var b strings.Builder
	for batch := range p.batches(math.MaxInt) {
		b.WriteString(p.writer.Print(p.steps(batch, 0)))
	}
	return b.String()
}

// Apply writes the plan. If the kernel refuses entries of a Service in a comparison, that Service stays as it was, and
// the error is a plane.Refused once everything else is written. In a plan of changes a refusal is an error like any
// other: another program may be the cause.
func (p *Plan[K, V]) Apply(ctx context.Context) error {
	for batch := range p.batches(p.writer.Room()) {
		if err := p.write(ctx, batch, 0); err != nil {
			return err
		}
		for _, g := range batch {
			g.steps = nil // a first load has many: their memory is free while the rest is written
		}
	}
	for _, learn := range p.learn {
		learn()
	}
	return p.refused.Err()
}

// write writes groups, from a phase on. If the kernel refuses them it writes each half on its own, until it is known
// which Service is the cause; phases that are carried out by then are not written twice.
func (p *Plan[K, V]) write(ctx context.Context, batch []*group[K, V], from Phase) error {
	steps := p.steps(batch, from)
	if len(steps) == 0 {
		return nil
	}
	err := p.writer.Write(ctx, steps)
	refusal, refused := errors.AsType[*Refusal](err)
	if err == nil || !refused || p.found == nil {
		return err
	}
	if len(batch) == 1 && batch[0].common() {
		if len(steps) == 1 {
			return p.lack(*steps[0], refusal)
		}
		batch = p.halves(p.steps(batch, refusal.Phase))
	}
	if half := len(batch) / 2; half > 0 {
		if err := p.write(ctx, batch[:half], refusal.Phase); err != nil {
			return err
		}
		return p.write(ctx, batch[half:], refusal.Phase)
	}
	p.refuse(batch[0].service, refusal.Err)
	return nil
}

// halves divides steps that belong to no single Service, in the order of phases.
func (p *Plan[K, V]) halves(steps []*Step[K, V]) []*group[K, V] {
	first, second := &group[K, V]{}, &group[K, V]{}
	for i, s := range steps {
		half := first
		if i >= (len(steps)+1)/2 {
			half = second
		}
		half.steps = append(half.steps, *s)
	}
	return []*group[K, V]{first, second}
}

// lack refuses the Services that need a shared entry. If there are none, the whole node
// needs it, and the refusal is an error.
func (p *Plan[K, V]) lack(s Step[K, V], refusal *Refusal) error {
	if p.users == nil || s.Op != Add && s.Op != Change || !p.handling(s.Key).Shared {
		return refusal
	}
	names := p.users(s.Key)
	if len(names) == 0 {
		return refusal
	}
	p.lacking[s.Key] = true
	for _, name := range names {
		p.refuse(name, refusal.Err)
	}
	return nil
}

// refuse notes the first reason for which a Service is refused.
func (p *Plan[K, V]) refuse(name cluster.Name, err error) {
	if p.refused[name] == nil {
		p.refused[name] = err
	}
}

// steps returns what remains to be written of groups, in the order of phases: nothing of phases before from, nothing of
// refused Services, and no removal of a target that old entries of those may lead to.
func (p *Plan[K, V]) steps(batch []*group[K, V], from Phase) []*Step[K, V] {
	var at [math.MaxUint8 + 2]int // where the steps of a phase begin
	p.eachOf(batch, from, func(s *Step[K, V]) { at[s.Phase+1]++ })
	for i := 1; i < len(at); i++ {
		at[i] += at[i-1]
	}
	list := make([]*Step[K, V], at[len(at)-1])
	p.eachOf(batch, from, func(s *Step[K, V]) {
		list[at[s.Phase]] = s
		at[s.Phase]++
	})
	return list
}

func (p *Plan[K, V]) eachOf(batch []*group[K, V], from Phase, do func(*Step[K, V])) {
	for _, g := range batch {
		if p.refused[g.service] != nil {
			continue
		}
		for i := range g.steps {
			s := &g.steps[i]
			if s.Phase >= from && !p.stays(g, s) {
				do(s)
			}
		}
	}
}

// stays reports whether a step removes a target that old entries of a refused Service may lead to.
func (p *Plan[K, V]) stays(g *group[K, V], s *Step[K, V]) bool {
	k := p.handling(s.Key)
	return len(p.refused) > 0 && g.common() && (s.Op == Empty || s.Op == Remove) && k.Target && !k.Checked
}

// rewritten returns the steps of the Rewrite, if there is one.
func (p *Plan[K, V]) rewritten() []Step[K, V] {
	if p.late == nil {
		return nil
	}
	g := group[K, V]{}
	for _, s := range p.late.Steps(p.refused) {
		p.add(&g, s)
	}
	return g.steps
}

// batches yields the groups that are written at once, in order.
func (p *Plan[K, V]) batches(room int) iter.Seq[[]*group[K, V]] {
	return func(yield func([]*group[K, V]) bool) {
		groups := p.groups()
		if p.late == nil {
			p.portions(groups, room, yield)
			return
		}
		before, last := groups[:len(groups)-1], groups[len(groups)-1:]
		if !p.portions(before, room, yield) {
			return
		}
		late := &group[K, V]{steps: p.rewritten()}
		if yield([]*group[K, V]{late}) {
			p.portions(last, room, yield)
		}
	}
}

// portions yields groups of about so much each; false: yield returned false. Entries of
// Services and those of none share a write only if everything fits into one.
func (p *Plan[K, V]) portions(groups []*group[K, V], room int, yield func([]*group[K, V]) bool) bool {
	var batch []*group[K, V]
	n, total := 0, 0
	for _, g := range groups {
		total += g.size
	}
	for _, g := range groups {
		parts := []*group[K, V]{g}
		if total > room {
			parts = p.split(g, room)
		}
		for _, part := range parts {
			if len(part.steps) == 0 {
				continue
			}
			apart := total > room && n > 0 && batch[0].common() != part.common()
			if n > 0 && n+part.size > room || apart {
				if !yield(batch) {
					return false
				}
				batch, n = nil, 0
			}
			batch = append(batch, part)
			n += part.size
		}
	}
	return len(batch) == 0 || yield(batch)
}

// split divides a group that is larger than one write: one that belongs to no Service in the order of phases, one of a
// Service into early additions, in portions, and the rest, so that the rest is written at once.
func (p *Plan[K, V]) split(g *group[K, V], room int) []*group[K, V] {
	if g.size <= room {
		return []*group[K, V]{g}
	}
	if g.common() {
		slices.SortStableFunc(g.steps, func(a, b Step[K, V]) int { return int(a.Phase) - int(b.Phase) })
		return p.chunks(g, g.steps, room)
	}
	var early, rest []Step[K, V]
	for _, s := range g.steps {
		if s.Op == Add && p.handling(s.Key).Early {
			early = append(early, s)
			continue
		}
		rest = append(rest, s)
	}
	last := &group[K, V]{service: g.service, steps: rest, size: p.size(rest)}
	return append(p.chunks(g, early, room), last)
}

// chunks divides steps of a group. The parts share the memory of the steps.
func (p *Plan[K, V]) chunks(g *group[K, V], steps []Step[K, V], room int) []*group[K, V] {
	var list []*group[K, V]
	part := &group[K, V]{service: g.service}
	begin := 0
	for i, s := range steps {
		size := p.writer.Size(s)
		if i > begin && part.size+size > room {
			list, begin = append(list, part), i
			part = &group[K, V]{service: g.service}
		}
		part.steps, part.size = steps[begin:i+1], part.size+size
	}
	if len(part.steps) > 0 {
		list = append(list, part)
	}
	return list
}
