package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The values of a table that is not as wanted.
const (
	unfit   = "unfit"   // sets or hooks differ, which cannot be changed in place
	dormant = "dormant" // its chains are switched off
)

// listing compares what the tables hold with what they should hold. It implements
// ledger.Listing, and removes wanted entries from the states.
type listing struct {
	render *renderer
	states map[route.Family]*nft.State
	tables map[route.Family]string // the values of the existing tables
	ranges map[key][]nft.Element

	numbered map[key]pools   // rows of frontends that remember their clients, by the key of the frontend in their map
	adopted  map[uint32]bool // ids
	slots    pools           // memory for those of one port
}

// newListing indexes the states. Tables that are unfit count as empty.
func newListing(r *renderer, seen map[route.Family]*nft.State) *listing {
	l := &listing{
		render: r, states: seen, tables: map[route.Family]string{}, ranges: map[key][]nft.Element{},
		numbered: map[key]pools{}, adopted: map[uint32]bool{},
	}
	for ip, state := range seen {
		switch {
		case state.Chains == nil:
			continue
		case r.builder(ip) != nil && !r.fit(ip, state):
			l.tables[ip], seen[ip] = unfit, &nft.State{}
			continue
		case state.Dormant:
			l.tables[ip] = dormant
		default:
			l.tables[ip] = ""
		}
		for _, e := range state.Sets[r.layout[podRanges].Name].Elements.All() {
			k := key{ip: ip, of: podRanges}
			l.ranges[k] = append(l.ranges[k], e)
		}
		for _, e := range state.Sets[r.layout[allowedRanges].Name].Elements.All() {
			k := key{ip, allowedRanges, e.Key[:len(e.Key)-addrLen(ip)]}
			l.ranges[k] = append(l.ranges[k], e)
		}
		for s := range spaces {
			l.index(ip, s)
		}
	}
	return l
}

// fit reports whether the existing sets and hooks of chains, which cannot be changed in
// place, are as wanted.
func (r *renderer) fit(ip route.Family, state *nft.State) bool {
	table := tableFor(ip)
	for _, set := range r.layout.sets() {
		if s, there := state.Sets[set.Name]; there && !s.Is(table.Family, set) {
			return false
		}
	}
	for name, c := range state.Chains {
		want, fixed := r.chains[key{ip, chainObject, name}]
		if (fixed || isActionChain(name)) && !c.SameHook(want) {
			return false
		}
	}
	return true
}

// elements returns what is left of the elements of a set.
func (l *listing) elements(ip route.Family, of object) nft.Elements {
	return l.states[ip].Sets[l.render.layout[of].Name].Elements
}

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had value, is ledger.Match) {
	k, state := want.Key, l.states[want.Key.ip]
	switch {
	case k.of == tableObject:
		state, there := l.tables[k.ip]
		delete(l.tables, k.ip)
		return compare(want, value{data: state}, there)
	case k.of == setObject:
		_, there := state.Sets[k.name]
		return compare(want, value{}, there)
	case k.of < firstElement:
		c, there := state.Chains[k.name]
		delete(state.Chains, k.name)
		if there && c.Is(l.render.chains[k]) {
			return want.Value, ledger.Equal
		}
		return compare(want, value{}, there)
	case k.of.ranged():
		elements, there := l.ranges[k]
		delete(l.ranges, k)
		return compare(want, encode(elements), there)
	}
	elements := l.elements(k.ip, k.of)
	e, there := elements.Get(k.name)
	delete(elements, k.name)
	return compare(want, valueOf(e), there)
}

func compare(want entry, had value, there bool) (value, ledger.Match) {
	switch {
	case !there:
		return value{}, ledger.Absent
	case had == want.Value:
		return had, ledger.Equal
	}
	return had, ledger.Different
}

// Rest implements ledger.Listing.
func (l *listing) Rest() []step {
	var list []step
	remove := func(ip route.Family, of object, name string, had value) {
		list = append(list, step{Op: ledger.Remove, Key: key{ip, of, name}, Old: had})
	}
	for ip, state := range l.states {
		if _, there := l.tables[ip]; there { // of a family that is not served
			remove(ip, tableObject, "", value{})
			continue
		}
		for name := range state.Chains {
			remove(ip, chainObject, name, value{})
		}
		for name := range state.Sets {
			if !slices.ContainsFunc(l.render.layout.sets(), func(s nft.Set) bool { return s.Name == name }) {
				remove(ip, setObject, name, value{})
			}
		}
		for of := firstElement; int(of) < len(l.render.layout); of++ {
			for name, e := range l.elements(ip, of).All() {
				if !of.ranged() {
					remove(ip, of, name, valueOf(e))
				}
			}
		}
	}
	for k, elements := range l.ranges {
		if _, there := l.tables[k.ip]; !there {
			remove(k.ip, k.of, k.name, encode(elements))
		}
	}
	return list
}

// record returns the slots of the backends of a port, and its id, as its frontends have them in the
// tables. The slots are valid until the next call.
func (l *listing) record(p *route.Port, fronts []front) (r record) {
	for pool := range r.slots {
		r.slots[pool] = l.slotsOf(route.Pool(pool), fronts)
	}
	if p.Affinity > 0 {
		r.id = l.adopt(fronts)
	}
	return r
}

// slotsOf returns the slots of a pool at the first frontend that has any.
func (l *listing) slotsOf(pool route.Pool, fronts []front) []netip.AddrPort {
	for i := range fronts {
		f := &fronts[i]
		for n, leg := range f.legs {
			switch {
			case leg.pool != pool || leg.kind() < kindPlain:
			case leg.sticky():
				if slots := l.numbered[key{f.key.ip, f.rowsOf(n), f.key.name}][pool]; len(slots) > 0 {
					return slots
				}
			case l.read(f, n):
				return l.slots[pool]
			}
		}
	}
	return nil
}

// read reads the slots among which a leg chooses; false: the first one is free, and probably all are.
func (l *listing) read(f *front, n int) bool {
	leg, elements := f.legs[n], l.elements(f.key.ip, f.rowsOf(n))
	l.slots[leg.pool] = l.slots[leg.pool][:0]
	for at := range leg.count() {
		e, there := elements.Get(rowKey(f.key.name, number(0, at)))
		if !there && at == 0 {
			return false
		}
		l.slots[leg.pool] = append(l.slots[leg.pool], backendIn(e.Data))
	}
	return true
}

// index indexes the rows of frontends that remember their clients by slot: their numbers have gaps.
func (l *listing) index(ip route.Family, s space) {
	ids := l.elements(ip, affinityElement.in(s))
	if len(ids) == 0 {
		return
	}
	for _, of := range []object{backendElement.in(s), outsideBackendElement.in(s)} {
		for name, e := range l.elements(ip, of).All() {
			cut := max(0, len(name)-4)
			if _, sticky := ids[name[:cut]]; !sticky {
				continue
			}
			pool, slot, ok := slotOf(binary.NativeEndian.Uint32([]byte(name[cut:])))
			if !ok {
				continue
			}
			k := key{ip, of, name[:cut]}
			rows := l.numbered[k]
			for len(rows[pool]) <= slot {
				rows[pool] = append(rows[pool], netip.AddrPort{})
			}
			rows[pool][slot] = backendIn(e.Data)
			l.numbered[k] = rows
		}
	}
}

// backendIn returns the backend in a row; an invalid one if there is none.
func backendIn(row string) netip.AddrPort {
	cut := max(0, len(row)-len(nft.Key{}.Port(0)))
	addr, ok := netip.AddrFromSlice([]byte(row[:cut]))
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(row[cut:])))
}

// adopt returns the first id that the frontends of a port have, and that no other port has; 0: they have none.
func (l *listing) adopt(fronts []front) uint32 {
	for i := range fronts {
		f := &fronts[i]
		e, _ := l.elements(f.key.ip, affinityElement.in(f.space)).Get(f.key.name)
		if id := idIn(e); isID(id) && !l.adopted[id] {
			l.adopted[id] = true
			return id
		}
	}
	return 0
}

// newestID returns the id from which to go on: the newest in the kernel, with a gap behind it at start, or
// the newest that was given before.
func (l *listing) newestID(given uint32) uint32 {
	newest := uint32(0)
	for ip := range l.states {
		for s := range spaces {
			for _, e := range l.elements(ip, affinityElement.in(s)).All() {
				if id := idIn(e); isID(id) {
					newest = max(newest, id)
				}
			}
		}
	}
	if given == 0 && newest > 0 {
		return newest + idGap
	}
	return max(given, newest)
}

// idIn returns the id in an element; 0: there is none.
func idIn(e nft.Element) uint32 { return uint32(actionIn(e)) }
