package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// diff works out the plan from one state of things to another.
type diff struct {
	*Plane
	host *route.Host
	plan *Plan
}

// touched plans a change of some services, and perhaps of the host.
func (d *diff) touched(c route.Change) {
	before := former{layout: &d.layout, fronts: map[frontKey]front{}}
	uses := map[use]int32{}
	for _, t := range c.Touched {
		d.leave(t.Old, &before, uses)
	}
	for _, t := range c.Touched {
		d.enter(t.New, &before)
		d.used(t.New, uses, 1)
		d.settle(t.Old, t.New)
	}
	for _, k := range slices.SortedFunc(maps.Keys(before.fronts), frontKey.compare) {
		d.front(k, before.fronts[k], front{})
	}
	d.count(uses)
	if c.OldHost != nil {
		d.rehost(c.OldHost)
	}
}

// source has what the kernel holds for a front, and gives it away.
type source interface {
	take(k frontKey) front
}

// former is a source made of routes that were.
type former struct {
	layout *layout
	fronts map[frontKey]front
}

func (s *former) take(k frontKey) front {
	f := s.fronts[k]
	delete(s.fronts, k)
	return f
}

// leave notes what a service as it was has in the kernel.
func (d *diff) leave(svc *route.Service, before *former, uses map[use]int32) {
	if svc == nil {
		return
	}
	d.used(svc, uses, -1)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !d.enabled(p.Family) {
			continue
		}
		a := d.arranged(svc.Name, p)
		for j := range p.Fronts {
			before.fronts[d.layout.key(p, &p.Fronts[j])] = d.layout.render(svc.Name, p, &p.Fronts[j], a)
		}
	}
}

// enter plans the fronts of a service as it is now.
func (d *diff) enter(svc *route.Service, before source) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if d.enabled(p.Family) {
			d.port(svc.Name, p, before)
		}
	}
}

// port plans the fronts of a port. The slots are those of before, as far as
// they fit: of the belief, or, when that is empty, of the first front seen.
func (d *diff) port(name cluster.Name, p *route.Port, before source) {
	olds := make([]front, len(p.Fronts))
	for j := range p.Fronts {
		olds[j] = before.take(d.layout.key(p, &p.Fronts[j]))
	}
	a := d.rearrange(name, p, olds)
	for j := range p.Fronts {
		d.front(d.layout.key(p, &p.Fronts[j]), olds[j], d.layout.render(name, p, &p.Fronts[j], a))
	}
}

// rearrange finds and notes the slots of a port's pools, and its id.
func (d *diff) rearrange(name cluster.Name, p *route.Port, olds []front) arrangement {
	a := arrangement{id: d.identify(keyOf(name, p, 0), p, olds)}
	for pool := range a.slots {
		want := p.Backends(route.Pool(pool))
		last := d.lastSlots(p, route.Pool(pool), olds)
		k := keyOf(name, p, route.Pool(pool))
		if p.Affinity > 0 {
			if known, ok := d.belief.slots[k]; ok {
				last = known
			}
			a.slots[pool] = renumber(last, want)
		} else {
			a.slots[pool] = arrange(last, want)
		}
		if len(want) == 0 || p.Affinity == 0 && &a.slots[pool][0] == &want[0] {
			delete(d.belief.slots, k) // in order
			continue
		}
		d.belief.slots[k] = a.slots[pool]
	}
	return a
}

func keyOf(name cluster.Name, p *route.Port, pool route.Pool) portKey {
	return portKey{name, p.Name, p.Protocol, p.Family, pool}
}

// lastSlots returns the slots a pool had at the first front that has any.
func (d *diff) lastSlots(p *route.Port, pool route.Pool, olds []front) []netip.AddrPort {
	for j, old := range olds {
		w := d.layout.shape(p, &p.Fronts[j])
		split := w.first.kind() == kindSplit
		of := route.Pool(0)
		if p.Affinity > 0 {
			of = pool
		}
		switch {
		case split && w.outsidePool == pool && len(old.outside[of]) > 0:
			return old.outside[of]
		case w.insidePool == pool && len(old.inside[of]) > 0:
			return old.inside[of]
		}
	}
	return nil
}

// arranged returns the slots that a port is believed to have in the kernel, and its id.
func (d *diff) arranged(name cluster.Name, p *route.Port) arrangement {
	a := arrangement{id: d.belief.ids[keyOf(name, p, 0)]}
	for pool := range a.slots {
		a.slots[pool] = p.Backends(route.Pool(pool))
		if s, ok := d.belief.slots[keyOf(name, p, route.Pool(pool))]; ok {
			a.slots[pool] = s
		}
	}
	return a
}

// settle forgets the slots and ids of ports that are gone.
func (d *diff) settle(old, now *route.Service) {
	if old == nil || len(d.belief.slots)+len(d.belief.ids) == 0 {
		return
	}
	for i := range old.Ports {
		p := &old.Ports[i]
		if now != nil && hasPort(now, p) {
			continue
		}
		for pool := range len(pools{}) {
			delete(d.belief.slots, keyOf(old.Name, p, route.Pool(pool)))
		}
		d.forget(keyOf(old.Name, p, 0))
	}
}

func hasPort(svc *route.Service, p *route.Port) bool {
	for i := range svc.Ports {
		q := &svc.Ports[i]
		if q.Name == p.Name && q.Protocol == p.Protocol && q.Family == p.Family {
			return true
		}
	}
	return false
}

// front plans the difference between two states of a front.
func (d *diff) front(k frontKey, old, now front) {
	s := &d.layout.spaces[k.space]
	t := d.table(k.ip)
	first := d.plan.phases[switched].n
	d.singles(t, old.singles, now.singles)
	for pool := range len(pools{}) {
		d.slots(t, rowsOf{&s.backends, k.key, pool}, old.inside[pool], now.inside[pool])
		d.slots(t, rowsOf{&s.outsideBackends, k.key, pool}, old.outside[pool], now.outside[pool])
	}
	d.ranges(t, &s.allowed, old.allowed, now.allowed)
	d.plan.tie(first)
}

// singles plans what differs under the key of a front. What leads to a front's
// other elements changes after they are there, and before they go.
func (d *diff) singles(t nft.Table, old, now []single) {
	for _, o := range old {
		if find(now, o.set) == nil {
			_, phase := d.layout.comeAndGo(o.set)
			d.plan.add(phase, step{do: deleteElement, table: t, set: o.set, elem: o.element})
		}
	}
	for _, n := range now {
		o := find(old, n.set)
		if o != nil && o.element == n.element {
			continue
		}
		phase, _ := d.layout.comeAndGo(n.set)
		if o != nil {
			phase = switched
			d.plan.add(phase, step{do: deleteElement, table: t, set: n.set, elem: o.element})
		}
		d.plan.add(phase, step{do: addElement, table: t, set: n.set, elem: n.element})
	}
}

// comeAndGo returns the phases in which an element comes and goes. What a front
// leads to, ways and all that is under its key, is there before it and as long as
// it is. Who refuses an address except at its fronts comes after them and goes
// before them: until all are there, another proxy may serve it, whose rules are
// asked next.
func (l *layout) comeAndGo(set *nft.Set) (come, leave int) {
	switch set {
	case &l.clusterIPs, &l.serviceCIDRs:
		return refusalsAdded, refusalsGone
	case &l.spaces[byAddress].fronts, &l.spaces[byNodePort].fronts, &l.nodeIPs, &l.hairpin:
		return switched, switched
	}
	return rowsAdded, rowsGone
}

// ranges plans the clients to let in, who are there as long as the guard is, or
// pods. Ranges must not overlap at any time, so a change of them is made at once.
func (d *diff) ranges(t nft.Table, set *nft.Set, old, now []nft.Element) {
	switch {
	case len(old) == 0:
		d.each(ranged, step{do: addElement, table: t, set: set}, now)
	case len(now) == 0:
		d.each(rowsGone, step{do: deleteElement, table: t, set: set}, old)
	default:
		d.elements(t, set, old, now)
	}
}

func find(singles []single, set *nft.Set) *single {
	for i := range singles {
		if singles[i].set == set {
			return &singles[i]
		}
	}
	return nil
}

// rowsOf names the numbered rows under a key.
type rowsOf struct {
	set  *nft.Set
	key  string
	pool int
}

func (r rowsOf) row(slot int, backend netip.AddrPort) nft.Element {
	return row(r.key, number(r.pool, slot), backend)
}

// slots plans the rows that differ: new ones before anything points at them,
// those no longer used after nothing does. An invalid backend is a hole.
func (d *diff) slots(t nft.Table, r rowsOf, old, now []netip.AddrPort) {
	for i := range max(len(old), len(now)) {
		o, n := slot(old, i), slot(now, i)
		remove := step{do: deleteElement, table: t, set: r.set}
		insert := step{do: addElement, table: t, set: r.set}
		switch {
		case o == n:
		case !o.IsValid():
			insert.elem = r.row(i, n)
			d.plan.add(rowsAdded, insert)
		case !n.IsValid():
			remove.elem = r.row(i, o)
			d.plan.add(rowsGone, remove)
		default:
			remove.elem, insert.elem = r.row(i, o), r.row(i, n)
			d.plan.add(switched, remove)
			d.plan.add(switched, insert)
		}
	}
}

func slot(slots []netip.AddrPort, i int) netip.AddrPort {
	if i < len(slots) {
		return slots[i]
	}
	return netip.AddrPort{}
}

// elements plans the difference between two lists of elements of a set, made at
// once.
func (d *diff) elements(t nft.Table, set *nft.Set, old, now []nft.Element) {
	d.each(switched, step{do: deleteElement, table: t, set: set}, without(old, now))
	d.each(switched, step{do: addElement, table: t, set: set}, without(now, old))
}

// ordered plans the same, with elements that come and go when their set's do.
func (d *diff) ordered(t nft.Table, set *nft.Set, old, now []nft.Element) {
	come, leave := d.layout.comeAndGo(set)
	d.each(leave, step{do: deleteElement, table: t, set: set}, without(old, now))
	d.each(come, step{do: addElement, table: t, set: set}, without(now, old))
}

// each adds a step for each of the elements.
func (d *diff) each(phase int, s step, elements []nft.Element) {
	for _, s.elem = range elements {
		d.plan.add(phase, s)
	}
}

// without returns the elements of a list that are not in another.
func without(list, other []nft.Element) []nft.Element {
	if len(list) == 0 || len(other) == 0 {
		return list
	}
	in := make(map[nft.Element]bool, len(other))
	for _, e := range other {
		in[e] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(e nft.Element) bool { return in[e] })
}

func (d *diff) enabled(ip route.Family) bool {
	for _, f := range d.families {
		if f.ip == ip {
			return true
		}
	}
	return false
}

func (d *diff) table(ip route.Family) nft.Table {
	for _, f := range d.families {
		if f.ip == ip {
			return f.table
		}
	}
	return nft.Table{}
}

func (d *diff) builder(f family, host *route.Host) builder {
	return builder{family: f, layout: &d.layout, host: host, mark: d.opt.Mark}
}
