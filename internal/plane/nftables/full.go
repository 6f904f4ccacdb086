package nftables

import (
	"cmp"
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// everything plans the difference between what the kernel holds and what it
// should: adoption at start, and repair.
func (d *diff) everything(t *route.Table, seen map[nft.Table]*nft.State) {
	for _, svc := range t.Services {
		d.used(svc, d.belief.uses, 1)
	}
	d.plan.first = true
	for _, f := range d.families {
		want := d.wanted(f)
		d.plan.first = d.plan.first && seen[f.table].Chains == nil
		if old := seen[f.table]; old.Chains != nil && !want.fit(f, old) {
			d.dropTable(f.table, old)
			seen[f.table] = &nft.State{}
		}
		d.skeleton(f, seen[f.table], want)
		d.shared(f, seen[f.table])
	}
	for _, f := range everyFamily() {
		if !d.enabled(f.ip) && seen[f.table].Chains != nil {
			d.dropTable(f.table, seen[f.table])
		}
	}
	d.newestID(seen)
	before := d.index(seen)
	names := slices.AppendSeq(make([]cluster.Name, 0, len(t.Services)), maps.Keys(t.Services))
	slices.SortFunc(names, firstThings)
	for _, name := range names {
		d.enter(t.Services[name], before)
	}
	before.rest(d)
}

// dropTable plans the end of a table with all that is in it.
func (d *diff) dropTable(t nft.Table, state *nft.State) {
	d.plan.add(prepared, step{do: deleteTable, table: t})
	d.plan.lost += state.Count()
}

// firstThings orders services: the API server's own comes first.
func firstThings(a, b cluster.Name) int {
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Compare(b))
}

func rank(n cluster.Name) int {
	if n == (cluster.Name{Namespace: "default", Name: "kubernetes"}) {
		return 0
	}
	return 1
}

// objects are chains and sets.
type objects struct {
	chains map[string]nft.Chain
	sets   map[string]nft.Set
}

// wanted returns all chains and sets that should be.
func (d *diff) wanted(f family) objects {
	want := objects{chains: d.chains(d.builder(f, d.host)), sets: map[string]nft.Set{}}
	for _, set := range d.layout.sets() {
		want.sets[set.Name] = *set
	}
	return want
}

// fit reports whether the sets and the hooks of chains there are, which cannot
// be changed in place, are as they should be.
func (o *objects) fit(f family, state *nft.State) bool {
	for name, s := range state.Sets {
		if set, ok := o.sets[name]; ok && !s.Is(f.table.Family, set) {
			return false
		}
	}
	for name, s := range state.Chains {
		if c, ok := o.chains[name]; ok && !s.SameHook(c) {
			return false
		}
	}
	return true
}

// skeleton plans the table with its sets and chains.
func (d *diff) skeleton(f family, state *nft.State, want objects) {
	if state.Chains == nil || state.Dormant {
		d.plan.add(prepared, step{do: addTable, table: f.table})
	}
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		if _, ok := state.Sets[name]; !ok {
			d.plan.add(prepared, step{do: addSet, table: f.table, set: new(want.sets[name])})
		}
	}
	for _, name := range inOrder(want.chains) {
		if s, ok := state.Chains[name]; !ok || !s.Is(want.chains[name]) {
			d.plan.add(made, step{do: setChain, table: f.table, chain: new(want.chains[name])})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Chains)) {
		if _, ok := want.chains[name]; !ok {
			d.plan.dropChain(f.table, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Sets)) {
		if _, ok := want.sets[name]; !ok {
			d.plan.add(setsGone, step{do: deleteSet, table: f.table, set: &nft.Set{Name: name}})
			d.plan.lost += len(state.Sets[name].Elements)
		}
	}
}

// shared plans the elements that do not belong to a single front.
func (d *diff) shared(f family, state *nft.State) {
	for _, of := range []shared{clusterIPs, hairpin} {
		d.members(f, state, of)
	}
	b := d.builder(f, d.host)
	d.ofHost(f.table, func(set *nft.Set) (old, now []nft.Element) {
		return sorted(maps.Values(state.Sets[set.Name].Elements)), sorted(slices.Values(b.elementsOf(set)))
	})
	for level := range d.layout.ways {
		d.ways(f, state, firstWays+shared(level))
	}
}

// inUse returns what is used of one kind, in order.
func (d *diff) inUse(ip route.Family, of shared) []use {
	var list []use
	for u := range d.belief.uses {
		if u.ip == ip && u.of == of {
			list = append(list, u)
		}
	}
	slices.SortFunc(list, use.compare)
	return list
}

// members plans the elements of a set that may be very large. What stays it
// takes out of the state.
func (d *diff) members(f family, state *nft.State, of shared) {
	set := use{of: of}.set(&d.layout)
	come, leave := d.layout.comeAndGo(set)
	had := state.Sets[set.Name].Elements
	missing := slices.DeleteFunc(d.inUse(f.ip, of), func(u use) bool {
		e := u.element(&d.layout)
		if old, ok := had[e.Key]; !ok || old != e {
			return false
		}
		delete(had, e.Key)
		return true
	})
	for _, e := range sorted(maps.Values(had)) {
		d.plan.add(leave, step{do: deleteElement, table: f.table, set: set, elem: e})
	}
	for _, u := range missing {
		d.plan.add(come, step{do: addElement, table: f.table, set: set, elem: u.element(&d.layout)})
	}
}

// ways plans the ways: they are there before a front points at them, and as
// long as one does.
func (d *diff) ways(f family, state *nft.State, of shared) {
	set := use{of: of}.set(&d.layout)
	had := maps.Clone(state.Sets[set.Name].Elements)
	for _, u := range d.inUse(f.ip, of) {
		e := u.element(&d.layout)
		old, ok := had[e.Key]
		delete(had, e.Key)
		switch {
		case !ok:
			d.plan.add(rowsAdded, step{do: addElement, table: f.table, set: set, elem: e})
		case old != e:
			d.elements(f.table, set, []nft.Element{old}, []nft.Element{e})
		}
	}
	for _, e := range sorted(maps.Values(had)) {
		d.plan.add(rowsGone, step{do: deleteElement, table: f.table, set: set, elem: e})
	}
}

func sorted(elements iter.Seq[nft.Element]) []nft.Element {
	return slices.SortedFunc(elements, func(a, b nft.Element) int { return cmp.Compare(a.Key, b.Key) })
}

// kernel is a source made of what was read: what is taken is left out of rest.
type kernel struct {
	layout *layout
	states map[route.Family]*nft.State
	rows   map[rowKey]pools
	ranges map[frontKey][]nft.Element
}

type rowKey struct {
	frontKey
	outside bool
}

// index arranges what was read by front.
func (d *diff) index(seen map[nft.Table]*nft.State) *kernel {
	k := &kernel{&d.layout, map[route.Family]*nft.State{}, map[rowKey]pools{}, map[frontKey][]nft.Element{}}
	for _, f := range d.families {
		k.states[f.ip] = seen[f.table]
		for i := range d.layout.spaces {
			s := &d.layout.spaces[i]
			k.indexRows(f.ip, i, &s.backends)
			k.indexRows(f.ip, i, &s.outsideBackends)
			for _, e := range k.states[f.ip].Sets[s.allowed.Name].Elements {
				key := frontKey{f.ip, i, e.Key[:len(e.Key)-addrLen(f.ip)]}
				k.ranges[key] = append(k.ranges[key], e)
			}
		}
	}
	return k
}

func addrLen(ip route.Family) int {
	if ip == route.IPv4 {
		return 4
	}
	return 16
}

// indexRows puts the rows of a set into slots. What cannot be a row of ours
// stays where it is, and so in the rest.
func (k *kernel) indexRows(ip route.Family, space int, set *nft.Set) {
	elements := k.states[ip].Sets[set.Name].Elements
	for at, e := range elements {
		cut := len(e.Key) - 4
		pool, slot, numbered := slotOf(binary.NativeEndian.Uint32([]byte(e.Key[cut:])))
		addr, ok := netip.AddrFromSlice([]byte(e.Data[:addrLen(ip)]))
		if !ok || !numbered {
			continue
		}
		port := binary.BigEndian.Uint16([]byte(e.Data[addrLen(ip):]))
		key := rowKey{frontKey{ip, space, e.Key[:cut]}, set == &k.layout.spaces[space].outsideBackends}
		rows := k.rows[key]
		for len(rows[pool]) <= slot {
			rows[pool] = append(rows[pool], netip.AddrPort{})
		}
		rows[pool][slot] = netip.AddrPortFrom(addr, port)
		k.rows[key] = rows
		delete(elements, at)
	}
}

func (k *kernel) take(fk frontKey) front {
	var f front
	s := &k.layout.spaces[fk.space]
	for _, set := range s.singles() {
		elements := k.states[fk.ip].Sets[set.Name].Elements
		if e, ok := elements[fk.key]; ok {
			f.singles = append(f.singles, single{set, e})
			delete(elements, fk.key)
		}
	}
	f.inside, f.outside, f.allowed = k.rows[rowKey{fk, false}], k.rows[rowKey{fk, true}], k.ranges[fk]
	delete(k.rows, rowKey{fk, false})
	delete(k.rows, rowKey{fk, true})
	delete(k.ranges, fk)
	for _, e := range f.allowed {
		delete(k.states[fk.ip].Sets[s.allowed.Name].Elements, e.Key+e.End)
	}
	return f
}

// singles lists the sets in which a front has at most one element.
func (s *space) singles() []*nft.Set {
	return []*nft.Set{&s.fronts, &s.guarded, &s.inside, &s.outside, &s.affinity}
}

// rest plans the end of all elements that no front took.
func (k *kernel) rest(d *diff) {
	for _, key := range slices.SortedFunc(maps.Keys(k.rows), func(a, b rowKey) int { return a.compare(b.frontKey) }) {
		set := &k.layout.spaces[key.space].backends
		if key.outside {
			set = &k.layout.spaces[key.space].outsideBackends
		}
		for pool, slots := range k.rows[key] {
			d.slots(d.table(key.ip), rowsOf{set, key.key, pool}, slots, nil)
		}
	}
	for _, f := range d.families {
		for i := range k.layout.spaces {
			for _, set := range k.layout.spaces[i].sets() {
				d.elements(f.table, set, sorted(maps.Values(k.states[f.ip].Sets[set.Name].Elements)), nil)
			}
		}
	}
}
