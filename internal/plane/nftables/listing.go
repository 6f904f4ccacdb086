package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// unfit is the value of a table to replace: its chains are switched off, or its sets or hooks differ.
const unfit = "unfit"

// listing compares what the tables hold with what they should hold. It implements
// ledger.Listing, and removes wanted entries from the states.
type listing struct {
	render *renderer
	states map[route.Family]*nft.State
	tables map[route.Family]string // the values of the existing tables
	ranges map[key][]nft.Element
	slots  pools // memory for those of one port
}

// newListing indexes the states. Tables that are unfit count as empty.
func newListing(r *renderer, seen map[route.Family]*nft.State) *listing {
	l := &listing{
		render: r, states: seen, tables: map[route.Family]string{}, ranges: map[key][]nft.Element{},
	}
	for ip, state := range seen {
		if state.Chains == nil {
			continue
		}
		if r.builders[ip] != nil && !r.fit(ip, state) {
			l.tables[ip], seen[ip] = unfit, &nft.State{}
			continue
		}
		l.tables[ip] = ""
		for _, of := range []object{podRanges, allowedRanges} {
			for _, e := range l.elements(ip, of).All() {
				k := key{ip, of, e.Key[:len(e.Key)-tableFor(ip).Family.AddrLen()]}
				l.ranges[k] = append(l.ranges[k], e)
			}
		}
	}
	return l
}

// fit reports whether a table need not be replaced.
func (r *renderer) fit(ip route.Family, state *nft.State) bool {
	table := tableFor(ip)
	if state.Dormant {
		return false
	}
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
		return want.Match(value{data: state}, there)
	case k.of == setObject:
		_, there := state.Sets[k.name]
		return want.Match(value{}, there)
	case k.of < firstElement:
		c, there := state.Chains[k.name]
		delete(state.Chains, k.name)
		if there && c.Is(l.render.chains[k]) {
			return want.Value, ledger.Equal
		}
		return want.Match(value{}, there)
	case k.of.ranged():
		elements, there := l.ranges[k]
		delete(l.ranges, k)
		return want.Match(encode(elements), there)
	}
	elements := l.elements(k.ip, k.of)
	e, there := elements.Get(k.name)
	delete(elements, k.name)
	return want.Match(valueOf(e), there)
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

// record returns what the frontends of a port have in the tables. The slots are valid until the next call.
func (l *listing) record(fronts []front) (r record) {
	for i := range fronts {
		f := &fronts[i]
		for n, leg := range f.legs {
			if leg.kind() >= kindPlain && r.pools[leg.pool] == nil {
				r.pools[leg.pool] = l.read(f, n)
			}
			e, _ := l.elements(f.key.ip, affinityElement.in(f.space)).Get(f.key.name)
			if id := actionIn(e.Data); leg.sticky() && r.id == 0 && id&isID == isID {
				r.id = uint32(id)
			}
		}
	}
	return r
}

// read reads the slots among which a leg chooses; nil: there are none.
func (l *listing) read(f *front, n int) []netip.AddrPort {
	leg, elements := f.legs[n], l.elements(f.key.ip, f.rowsOf(n))
	if len(elements) == 0 {
		return nil
	}
	first, count := number(0, 0), leg.count()
	if leg.sticky() {
		first, count = number(int(leg.pool), 0), leg.drawn()*formerly
	}
	slots, end := l.slots[leg.pool][:0], 0
	for i := range uint32(count) {
		e, there := elements.Get(rowKey(f.key.name, first+i))
		if slots = append(slots, backendIn(e.Data)); there {
			end = len(slots)
		}
	}
	if l.slots[leg.pool] = slots; end == 0 {
		return nil
	}
	return slots[:end]
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
