package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// front is a frontend, arranged. What the tables hold for it follows from it alone.
type front struct {
	*route.Frontend
	port  *route.Port
	space space
	key   key      // of its element in the map of frontends
	legs  [2]leg   // for every client; or, with two, for clients inside and for others
	rows  [2]pools // of backends and of outside-backends: those that each leg chooses among
	id    uint32   // of the port, if it remembers its clients
}

// leg is what happens to connections of some clients; the zero leg is that of none.
type leg struct {
	action
	pool route.Pool // that the action chooses among
}

// split reports whether it matters where a client is.
func (f *front) split() bool { return f.legs[1].action != 0 }

// first returns the action in the map of frontends.
func (f *front) first() action {
	a := f.legs[0].action
	if f.split() {
		a = f.space.action(kindSplit, 0)
	}
	if f.Restricted {
		a |= guardBit
	}
	return a
}

// arrange appends the frontends of a Service, with the record that a function returns for each port.
func arrange(list []front, svc *route.Service, of func(*route.Port, []front) record) []front {
	if svc == nil {
		return list
	}
	for i := range svc.Ports {
		p, begin := &svc.Ports[i], len(list)
		list = place(list, p)
		r := of(p, list[begin:])
		r.complete(p).assign(list[begin:], r.id)
	}
	return list
}

func (f *front) rowsOf(leg int) object { return (backendElement + object(leg)).in(f.space) }

// place appends the frontends of a port without rows and id.
func place(list []front, p *route.Port) []front {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		list = append(list, front{Frontend: f, port: p, space: spaceOf(f), key: keyOf(p, f), legs: legsOf(p, f)})
	}
	return list
}

// keyOf returns the key of a frontend. No two frontends have the same.
func keyOf(p *route.Port, f *route.Frontend) key {
	k := nft.Key{}
	if f.Kind != route.NodePort {
		k = make(nft.Key, 0, 24).Addr(f.Addr)
	}
	return key{p.Family, frontendElement.in(spaceOf(f)), string(k.Proto(uint8(p.Protocol)).Port(f.Port))}
}

// legsOf returns what happens to connections to a frontend.
func legsOf(p *route.Port, f *route.Frontend) [2]leg {
	s, same := spaceOf(f), f.Node
	same.Masquerade = f.Pods.Masquerade
	switch {
	case f.Pods == f.Node && f.Node == f.Others:
		return [2]leg{s.choose(p, f.Pods, kindPlain)}
	case f.Node == f.Others && f.Pods == same:
		return [2]leg{s.choose(p, f.Node, kindOffPod)}
	}
	inside := f.Node // the split marks connections of this node itself
	inside.Masquerade = false
	return [2]leg{s.choose(p, inside, kindPlain), s.choose(p, f.Others, kindOutside)}
}

func (s space) choose(p *route.Port, w route.Action, kind uint16) leg {
	n := count(p, w.Pool)
	if kind == kindPlain && w.Masquerade {
		kind = kindMasquerade
	}
	switch {
	case w.Verdict == route.Drop:
		return leg{s.action(kindDrop, 0), w.Pool}
	case w.Verdict == route.Reject || n == 0:
		return leg{s.action(kindReject, 0), w.Pool}
	case p.Affinity > 0:
		return leg{s.stickyAction(kind, p.Affinity, w.Pool, n), w.Pool}
	}
	a := s.action(kind, n)
	if hashes(p) {
		a |= hashBit
	}
	return leg{a, w.Pool}
}

// pools are backends in their slots: of a port, by pool; of a frontend, by the pool of the port whose slots they
// are, if the port remembers its clients, else in the first. An invalid backend is a hole.
type pools [2][]netip.AddrPort

// record is the part of a Service port in the tables that its route does not determine: the slots of its
// backends, unless they are in the order of the route, and its id, if it remembers its clients.
type record struct {
	pools
	id uint32
}

func (r record) empty() bool { return r.pools[0] == nil && r.pools[1] == nil && r.id == 0 }

// complete fills in the slots that are in the order of the route.
func (p pools) complete(port *route.Port) pools {
	for pool := range p {
		if p[pool] == nil {
			p[pool] = slotsOf(port, route.Pool(pool))
		}
	}
	return p
}

// next returns the slots of a port that had these before. A backend keeps its slot, unless connections were counted.
func (p pools) next(port *route.Port, live *Live) (next pools) {
	if least(port) {
		return p.level(port, live)
	}
	if slotted(port) { // its slots follow from its backends
		return next
	}
	for pool, before := range p {
		arrange, want := ledger.Arrange, weighted(port, route.Pool(pool))
		if port.Affinity > 0 {
			arrange = renumber
		}
		if slots := arrange(before, want); !slices.Equal(slots, want) {
			next[pool] = slots
		}
	}
	return next
}

// assign gives the frontends of a port its slots and its id.
func (p pools) assign(fronts []front, id uint32) {
	for i := range fronts {
		f := &fronts[i]
		for n, l := range f.legs {
			switch {
			case l.sticky():
				f.rows[n], f.id = p.reachable(l.pool, weighted(f.port, l.pool)), id
			case l.kind() >= kindPlain:
				f.rows[n] = pools{p[l.pool]}
			}
		}
	}
}

// renumber assigns each of the wanted backends, which are sorted, a slot among those that clients draw from. A
// backend also keeps the slots that it had, for clients that drew another number when there were more backends,
// so that it may have several. If there are too few slots, it keeps the lowest.
func renumber(before, want []netip.AddrPort) []netip.AddrPort {
	if len(before) == 0 || len(want) == 0 || slices.Equal(before, want) {
		return want
	}
	limit := drawn(len(want))
	spare := limit - len(want)
	slots, placed := make([]netip.AddrPort, len(before), max(len(before), len(want))), make([]bool, len(want))
	for i, b := range before {
		j, found := slices.BinarySearchFunc(want, b, netip.AddrPort.Compare)
		switch {
		case !found || i < limit && placed[j] && spare == 0:
			continue
		case i < limit && placed[j]:
			spare--
		case i < limit:
			placed[j] = true
		}
		slots[i] = b
	}
	slots = ledger.Fill(slots, want, placed)
	for len(slots) > 0 && !slots[len(slots)-1].IsValid() {
		slots = slots[:len(slots)-1]
	}
	return slots
}

// reachable returns the rows of a pool: slots of both pools that have one of these backends.
func (p pools) reachable(pool route.Pool, backends []netip.AddrPort) pools {
	if len(p[1-pool]) == 0 {
		return p
	}
	var rows pools
	for pool, slots := range p {
		for i, b := range slots {
			if _, found := slices.BinarySearchFunc(backends, b, netip.AddrPort.Compare); !found {
				continue
			}
			if rows[pool] == nil {
				rows[pool] = make([]netip.AddrPort, len(slots))
			}
			rows[pool][i] = b
		}
	}
	return rows
}
