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
	for _, f := range d.families {
		seen[f.table] = d.skeleton(f, seen[f.table])
	}
	before := d.index(seen)
	names := slices.SortedFunc(maps.Keys(t.Services), firstThings)
	for _, name := range names {
		d.enter(t.Services[name], before, d.belief.uses)
	}
	for _, f := range d.families {
		d.shared(f, seen[f.table])
		d.allChains(f, seen[f.table], t)
	}
	before.rest(d)
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

// skeleton plans the table and its sets, and returns what can be kept of what
// is there: all, or nothing if it was laid out in another way.
func (d *diff) skeleton(f family, state *nft.State) *nft.State {
	if state.Chains != nil && !d.fits(f, state) {
		d.plan.add(objects0, step{do: deleteTable, table: f.table})
		state = &nft.State{}
	}
	if state.Chains == nil {
		d.plan.add(objects0, step{do: addTable, table: f.table})
	}
	for _, set := range d.layout.sets() {
		if _, ok := state.Sets[set.Name]; !ok {
			d.plan.add(objects0, step{do: addSet, table: f.table, set: set})
		}
	}
	return state
}

// fits reports whether sets and base chains, which cannot be changed in place,
// are as we make them.
func (d *diff) fits(f family, state *nft.State) bool {
	for _, set := range d.layout.sets() {
		if s, ok := state.Sets[set.Name]; ok && !s.Is(f.table.Family, *set) {
			return false
		}
	}
	for _, c := range d.builder(f, d.host).fixed() {
		if s, ok := state.Chains[c.Name]; ok && !s.SameHook(c) {
			return false
		}
	}
	return true
}

// shared plans the elements that do not belong to a single front.
func (d *diff) shared(f family, state *nft.State) {
	b := d.builder(f, d.host)
	want := map[*nft.Set][]nft.Element{}
	for _, set := range []*nft.Set{&d.layout.podCIDRs, &d.layout.serviceCIDRs, &d.layout.nodeIPs} {
		want[set] = b.elementsOf(set)
	}
	for u := range d.belief.uses {
		if u.ip == f.ip && u.of != nil {
			want[u.of] = append(want[u.of], u.element(&d.layout))
		}
	}
	for _, set := range []*nft.Set{&d.layout.podCIDRs, &d.layout.serviceCIDRs, &d.layout.nodeIPs,
		&d.layout.clusterIPs, &d.layout.hairpin} {
		had := sorted(maps.Values(state.Sets[set.Name].Elements))
		d.elements(f.table, set, had, sorted(slices.Values(want[set])))
	}
	for level := range d.layout.ways {
		d.ways(f, state, want, &d.layout.ways[level])
	}
}

// ways plans the ways: they are there before a front points at them, and as
// long as one does.
func (d *diff) ways(f family, state *nft.State, all map[*nft.Set][]nft.Element, set *nft.Set) {
	had := maps.Clone(state.Sets[set.Name].Elements)
	for _, e := range sorted(slices.Values(all[set])) {
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

// allChains plans all chains, and the sets that services need for themselves.
func (d *diff) allChains(f family, state *nft.State, t *route.Table) {
	want := d.chains(d.builder(f, d.host))
	sets := map[string]nft.Set{}
	for _, svc := range t.Services {
		if !remembers(svc) {
			continue
		}
		o := d.own(f, svc)
		maps.Copy(want, o.chains)
		maps.Copy(sets, o.sets)
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if _, ok := state.Sets[name]; !ok {
			d.plan.add(objects0, step{do: addSet, table: f.table, set: ptr(sets[name])})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if s, ok := state.Chains[name]; !ok || !s.Is(want[name]) {
			d.plan.add(objects0, step{do: setChain, table: f.table, chain: want[name]})
		}
	}
	d.unwanted(f, state, want, sets)
}

// unwanted plans the end of chains and sets of ours that nothing needs.
func (d *diff) unwanted(f family, state *nft.State, chains map[string]nft.Chain, sets map[string]nft.Set) {
	for _, set := range d.layout.sets() {
		sets[set.Name] = *set
	}
	for _, name := range slices.Sorted(maps.Keys(state.Chains)) {
		if _, ok := chains[name]; !ok {
			d.plan.add(objectsGone, step{do: deleteChain, table: f.table, chain: nft.Chain{Name: name}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Sets)) {
		if _, ok := sets[name]; !ok {
			d.plan.add(objectsGone, step{do: deleteSet, table: f.table, set: &nft.Set{Name: name}})
		}
	}
}

// kernel is a source made of what was read: what is taken is left out of rest.
type kernel struct {
	layout *layout
	states map[route.Family]*nft.State
	rows   map[rowKey][]netip.AddrPort
	ranges map[frontKey][]nft.Element
}

type rowKey struct {
	frontKey
	outside bool
}

// index arranges what was read by front.
func (d *diff) index(seen map[nft.Table]*nft.State) *kernel {
	k := &kernel{&d.layout, map[route.Family]*nft.State{}, map[rowKey][]netip.AddrPort{}, map[frontKey][]nft.Element{}}
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
		slot := int(binary.NativeEndian.Uint32([]byte(e.Key[cut:])))
		addr, ok := netip.AddrFromSlice([]byte(e.Data[:addrLen(ip)]))
		if !ok || slot > maxBackends {
			continue
		}
		port := binary.BigEndian.Uint16([]byte(e.Data[addrLen(ip):]))
		key := rowKey{frontKey{ip, space, e.Key[:cut]}, set == &k.layout.spaces[space].outsideBackends}
		slots := k.rows[key]
		for len(slots) <= slot {
			slots = append(slots, netip.AddrPort{})
		}
		slots[slot] = netip.AddrPortFrom(addr, port)
		k.rows[key] = slots
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
	return []*nft.Set{&s.fronts, &s.guarded, &s.inside, &s.outside, &s.sticky, &s.outsideSticky}
}

// rest plans the end of all elements that no front took.
func (k *kernel) rest(d *diff) {
	for key, slots := range k.rows {
		set := &k.layout.spaces[key.space].backends
		if key.outside {
			set = &k.layout.spaces[key.space].outsideBackends
		}
		d.slots(d.table(key.ip), rowsOf{set, key.key}, slots, nil)
	}
	for ip, state := range k.states {
		for i := range k.layout.spaces {
			for _, set := range k.layout.spaces[i].sets() {
				for _, e := range state.Sets[set.Name].Elements {
					d.plan.add(switched, step{do: deleteElement, table: d.table(ip), set: set, elem: e})
				}
			}
		}
	}
}
