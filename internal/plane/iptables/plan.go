package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change to the tables, carried out in restores of a size that the
// programs can handle. After each of them a Service is either there whole, or as
// it was.
type Plan struct {
	kernel   Writer
	observer Observer
	families []*familyPlan
	table    *route.Table
	totals   map[tableKey]int // of our rules, once it is applied
	full     bool             // it compares everything
	kept     int

	refused plane.Refused
}

// familyPlan is the part of a plan that is about one family.
type familyPlan struct {
	*family
	first    edit   // what all Services need
	services []edit // one for each that changes
	rewrites edit   // shared chains that lose so much that they are written anew
	last     edit   // what no Service needs any more

	refused map[cluster.Name]bool // Services that stay as they are

	left map[cluster.Name]*route.Service // what there is of Services that are left out in part
}

// settle moves what leads nowhere any more behind the rewriting of the chains that
// led there.
func (p *familyPlan) settle() {
	if len(p.rewrites.chains) == 0 {
		return
	}
	rewritten := func(l line) bool {
		return slices.ContainsFunc(p.rewrites.chains, func(c chain) bool { return c.table == l.table && c.name == l.chain })
	}
	for i := range p.services {
		e := &p.services[i]
		e.del = slices.DeleteFunc(e.del, rewritten)
		p.last.gone = append(p.last.gone, e.gone...)
		e.gone = nil
	}
	p.last.del = slices.DeleteFunc(p.last.del, rewritten)
}

// restores yields what is written at once, in order. Chains are emptied before
// any of them goes, as they may lead to each other.
func (p *familyPlan) restores(room int) iter.Seq[[]edit] {
	return func(yield func([]edit) bool) {
		all := append(append([]edit{p.first}, p.services...), p.last)
		if len(p.rewrites.chains) == 0 && size(all) <= room {
			all = slices.DeleteFunc(all, func(e edit) bool { return e.lines() == 0 })
			if len(all) > 0 {
				yield(all)
			}
			return
		}
		parts := [][]edit{{p.first}}
		parts = append(parts, portions(p.services, room)...)
		last := p.last
		last.gone = nil
		parts = append(parts, []edit{p.rewrites}, []edit{last})
		for gone := range slices.Chunk(p.last.gone, max(1, room/2)) {
			parts = append(parts, []edit{{emptied: gone}})
		}
		for gone := range slices.Chunk(p.last.gone, max(1, room/2)) {
			parts = append(parts, []edit{{gone: gone}})
		}
		for _, part := range parts {
			if size(part) > 0 && !yield(part) {
				return
			}
		}
	}
}

// without returns edits that leave alone what Services need that are refused: the
// chains that their old rules may lead to. In a chain written anew they have no
// rules, as those may lead to chains that are not there.
func (p *familyPlan) without(edits []edit) []edit {
	if len(p.refused) == 0 {
		return edits
	}
	var list []edit
	for _, e := range edits {
		if e.service == (cluster.Name{}) {
			e.gone, e.emptied, e.chains = nil, nil, slices.Clone(e.chains)
			for i := range e.chains {
				e.chains[i] = e.chains[i].without(p.refused)
			}
		}
		if e.lines() > 0 {
			list = append(list, e)
		}
	}
	return list
}

// portions groups edits so that each group has room, or is a single edit.
func portions(edits []edit, room int) [][]edit {
	var parts [][]edit
	from, n := 0, 0
	for i := range edits {
		lines := edits[i].lines()
		if i > from && n+lines > room {
			parts = append(parts, edits[from:i])
			from, n = i, 0
		}
		n += lines
	}
	return append(parts, edits[from:])
}

func size(edits []edit) int {
	n := 0
	for i := range edits {
		n += edits[i].lines()
	}
	return n
}

// each calls a function with all edits.
func (p *familyPlan) each(do func(*edit)) {
	do(&p.first)
	for i := range p.services {
		do(&p.services[i])
	}
	do(&p.rewrites)
	do(&p.last)
}

// Steps returns the number of lines to write.
func (p *Plan) Steps() int {
	n := 0
	for _, f := range p.families {
		f.each(func(e *edit) { n += e.lines() })
	}
	return n
}

// Left implements plane.Partial.
func (p *Plan) Left() []*route.Service {
	names := map[cluster.Name]bool{}
	for _, f := range p.families {
		for name := range f.left {
			names[name] = true
		}
	}
	list := make([]*route.Service, 0, len(names))
	for name := range names {
		if p.refused[name] == nil {
			list = append(list, p.there(name))
		}
	}
	return list
}

// there returns a Service with the ports of each family that the plan brings in.
func (p *Plan) there(name cluster.Name) *route.Service {
	svc := *p.table.Services[name]
	ports := svc.Ports
	svc.Ports = nil
	for _, f := range p.families {
		all := ports
		if left := f.left[name]; left != nil {
			all = left.Ports
		}
		for _, port := range all {
			if port.Family == f.ip {
				svc.Ports = append(svc.Ports, port)
			}
		}
	}
	return &svc
}

// Kept returns the number of rules found in the kernel that stay.
func (p *Plan) Kept() int { return p.kept }

// String prints the plan as what is given to the programs.
func (p *Plan) String() string {
	var b strings.Builder
	for _, f := range p.families {
		for edits := range f.restores(math.MaxInt) {
			b.WriteString("# " + f.program + "-restore --noflush\n")
			input, _ := compose(edits, 0)
			b.Write(input)
		}
	}
	return b.String()
}

// Apply writes the plan. In one that compares everything a Service whose rules are
// refused does not keep others from theirs: the error is a plane.Refused then.
func (p *Plan) Apply(ctx context.Context) error {
	for _, f := range p.families {
		for edits := range f.restores(p.kernel.Room()) {
			left := len(f.refused)
			err := p.restore(ctx, f, edits, 0)
			if err != nil || len(f.refused) > left {
				p.failed(f)
			}
			if err != nil {
				return err
			}
		}
		p.observe(f)
	}
	if len(p.refused) > 0 {
		return p.refused
	}
	return nil
}

// restore writes edits, from a section on; if they are refused in a comparison
// each half on its own, until it is known which Service it is. What comes before the section that
// was refused is in the kernel then, and is not written twice.
func (p *Plan) restore(ctx context.Context, f *familyPlan, edits []edit, from int) error {
	edits = f.without(edits)
	input, present := compose(edits, from)
	if len(input) == 0 {
		return nil
	}
	err := p.kernel.Restore(ctx, f.kernel, input)
	if err == nil {
		return nil
	}
	refusal, refused := errors.AsType[*iptables.RestoreError](err)
	if !refused {
		return err
	}
	if !p.full {
		return err // others may be the cause: a comparison is on firm ground
	}
	if len(edits) > 1 {
		half, at := len(edits)/2, present[min(refusal.Committed, len(present)-1)]
		if err := p.restore(ctx, f, edits[:half], at); err != nil {
			return err
		}
		return p.restore(ctx, f, edits[half:], at)
	}
	name := edits[0].service
	if name == (cluster.Name{}) {
		return err
	}
	if before := p.refused[name]; before != nil { // in the other family
		err = fmt.Errorf("%w; %w", before, err)
	}
	if p.refused == nil {
		p.refused = plane.Refused{}
	}
	p.refused[name] = err
	if f.refused == nil {
		f.refused = map[cluster.Name]bool{}
	}
	f.refused[name] = true
	return nil
}

func (p *Plan) failed(f *familyPlan) {
	switch {
	case p.observer == nil:
	case p.full:
		p.observer.RestoreFailed(f.ip)
	default:
		p.observer.PartialRestoreFailed(f.ip)
	}
}

// observe tells how much of a family is ours and was written.
func (p *Plan) observe(f *familyPlan) {
	if p.observer == nil {
		return
	}
	for _, t := range []table{filter, nat} {
		written := 0
		f.each(func(e *edit) { written += e.rulesIn(t) })
		p.observer.Rules(f.ip, t.String(), p.totals[tableKey{f.ip, t}], written)
	}
}

// sortedNames returns the keys in order: a plan reads the same each time.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
