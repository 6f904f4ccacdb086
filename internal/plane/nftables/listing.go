package nftables

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sync"

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
	rows   func() map[rowsKey]pools
}

// rowsKey identifies the rows of a frontend in one of the two maps of backends.
type rowsKey struct {
	frontendKey
	outside int
}

// newListing indexes the states. Tables that are unfit count as empty.
func newListing(r *renderer, seen map[route.Family]*nft.State) *listing {
	l := &listing{render: r, states: seen, tables: map[route.Family]string{}, ranges: map[key][]nft.Element{}}
	l.rows = sync.OnceValue(l.indexRows)
	for ip, state := range seen {
		switch {
		case state.Chains == nil:
			continue
		case r.enabled(ip) && !r.fit(ip, state):
			l.tables[ip], seen[ip] = unfit, &nft.State{}
			continue
		case state.Dormant:
			l.tables[ip] = dormant
		default:
			l.tables[ip] = ""
		}
		for _, e := range state.Sets[r.layout.podCIDRs.Name].Elements.All() {
			k := key{ip: ip, of: podRanges}
			l.ranges[k] = append(l.ranges[k], e)
		}
		for i := range r.layout.spaces {
			for _, e := range state.Sets[r.layout.spaces[i].allowed.Name].Elements.All() {
				k := key{ip, allowedRanges.in(i), e.Key[:len(e.Key)-addrLen(ip)]}
				l.ranges[k] = append(l.ranges[k], e)
			}
		}
	}
	return l
}

// empty reports whether there are no tables.
func (l *listing) empty() bool {
	return !slices.ContainsFunc(slices.Collect(maps.Values(l.states)), func(s *nft.State) bool { return s.Chains != nil }) && len(l.tables) == 0
}

// fit reports whether the existing sets and hooks of chains, which cannot be changed in
// place, are as wanted.
func (r *renderer) fit(ip route.Family, state *nft.State) bool {
	table := tableFor(ip)
	for _, set := range r.layout.all {
		if s, there := state.Sets[set.Name]; there && !s.Is(table.Family, set) {
			return false
		}
	}
	for k, c := range r.chains {
		if s, there := state.Chains[k.name]; there && k.ip == ip && !s.SameHook(c) {
			return false
		}
	}
	return true
}

// foreignHooks reports whether a chain other than the fixed ones is registered at a hook.
func foreignHooks(r *renderer, seen map[route.Family]*nft.State) bool {
	for ip, state := range seen {
		for name, c := range state.Chains {
			if _, fixed := r.chains[key{ip, chainObject, name}]; !fixed && !c.SameHook(nft.Chain{}) {
				return true
			}
		}
	}
	return false
}

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had string, is ledger.Match) {
	k, state := want.Key, l.states[want.Key.ip]
	switch {
	case k.of == tableObject:
		had, there := l.tables[k.ip]
		delete(l.tables, k.ip)
		return compare(want, had, there)
	case k.of == setObject:
		_, there := state.Sets[k.name]
		return compare(want, "", there)
	case k.of < firstElement:
		c, there := state.Chains[k.name]
		delete(state.Chains, k.name)
		if there && c.Is(l.render.chains[k]) {
			return want.Value, ledger.Equal
		}
		return compare(want, "", there)
	case k.of.ranged():
		elements, there := l.ranges[k]
		delete(l.ranges, k)
		return compare(want, encode(elements), there)
	}
	elements := state.Sets[l.render.layout.set(k.of).Name].Elements
	e, there := elements.Get(k.name)
	delete(elements, k.name)
	return compare(want, value(e), there)
}

func compare(want entry, had string, there bool) (string, ledger.Match) {
	switch {
	case !there:
		return "", ledger.Absent
	case had == want.Value:
		return had, ledger.Equal
	}
	return had, ledger.Different
}

// Rest implements ledger.Listing.
func (l *listing) Rest() []step {
	var list []step
	remove := func(ip route.Family, of object, name, value string) {
		list = append(list, step{Op: ledger.Remove, Key: key{ip, of, name}, Old: value})
	}
	for ip := range l.tables { // of a family that is not served
		remove(ip, tableObject, "", "")
		l.states[ip] = &nft.State{}
	}
	for ip, state := range l.states {
		for name := range state.Chains {
			remove(ip, chainObject, name, "")
		}
		for name := range state.Sets {
			if !slices.ContainsFunc(l.render.layout.all, func(s nft.Set) bool { return s.Name == name }) {
				remove(ip, setObject, name, "")
			}
		}
		for i, set := range l.render.layout.all {
			of := firstElement + object(i)
			for name, e := range state.Sets[set.Name].Elements.All() {
				if !of.ranged() {
					remove(ip, of, name, value(e))
				}
			}
		}
	}
	for k, elements := range l.ranges {
		if len(l.states[k.ip].Sets) > 0 {
			remove(k.ip, k.of, k.name, encode(elements))
		}
	}
	return list
}

// frontend returns the rows and the id that a frontend has.
func (l *listing) frontend(k frontendKey) found {
	f := found{rows: [2]pools{l.rows()[rowsKey{k, 0}], l.rows()[rowsKey{k, 1}]}}
	e, _ := l.states[k.ip].Sets[l.render.layout.spaces[k.space].affinity.Name].Elements.Get(k.key)
	f.id = idIn(e)
	return f
}

// ordered reports whether the backends of a port have their slots in the order of the
// route, as in most ports.
func (l *listing) ordered(p *route.Port) bool {
	if p.Affinity > 0 {
		return false
	}
	for j := range p.Frontends {
		a := l.render.layout.shape(p, &p.Frontends[j])
		f := frontend{key: l.render.layout.key(p, &p.Frontends[j])}
		if !l.orderedRows(&f, 0, p.Backends(a.insidePool)) {
			return false
		}
		if a.first.kind() == kindSplit && !l.orderedRows(&f, 1, p.Backends(a.outsidePool)) {
			return false
		}
	}
	return true
}

// orderedRows reports whether a frontend has rows for the backends in this order. It
// returns true if the first row is missing: the frontend probably has none.
func (l *listing) orderedRows(f *frontend, outside int, backends []netip.AddrPort) bool {
	for at, backend := range backends {
		e := f.row(outside, number(0, at), backend)
		elements := l.states[f.key.ip].Sets[l.render.layout.set(e.Key.of).Name].Elements
		old, there := elements.Get(e.Key.name)
		if !there && at == 0 {
			return true
		}
		if old.Data != e.Value {
			return false
		}
	}
	return true
}

// indexRows returns the backends in the rows of all frontends by slot. It ignores elements
// that cannot be our rows.
func (l *listing) indexRows() map[rowsKey]pools {
	all := map[rowsKey]pools{}
	for ip, state := range l.states {
		if !l.render.enabled(ip) {
			continue
		}
		for i := range l.render.layout.spaces {
			s := &l.render.layout.spaces[i]
			for outside, set := range []nft.Set{s.backends, s.outsideBackends} {
				for _, e := range state.Sets[set.Name].Elements.All() {
					if e.Key == "" {
						continue
					}
					cut := len(e.Key) - 4
					pool, slot, numbered := slotOf(binary.NativeEndian.Uint32([]byte(e.Key[cut:])))
					addr, ok := netip.AddrFromSlice([]byte(e.Data[:addrLen(ip)]))
					if !ok || !numbered {
						continue
					}
					k := rowsKey{frontendKey{ip, i, e.Key[:cut]}, outside}
					rows := all[k]
					for len(rows[pool]) <= slot {
						rows[pool] = append(rows[pool], netip.AddrPort{})
					}
					rows[pool][slot] = netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(e.Data[addrLen(ip):])))
					all[k] = rows
				}
			}
		}
	}
	return all
}

// newestID returns the newest id in the kernel, from which to go on; 0: there is none.
func (l *listing) newestID() uint32 {
	newest := uint32(0)
	for _, state := range l.states {
		for i := range l.render.layout.spaces {
			for _, e := range state.Sets[l.render.layout.spaces[i].affinity.Name].Elements.All() {
				if id := idIn(e); isID(id) {
					newest = max(newest, id)
				}
			}
		}
	}
	return newest
}
