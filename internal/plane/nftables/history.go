package nftables

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// portKey identifies a Service port.
type portKey struct {
	service  cluster.Name
	port     string
	protocol cluster.Protocol
	ip       route.Family
}

func keyOf(name cluster.Name, p *route.Port) portKey {
	return portKey{name, p.Name, p.Protocol, p.Family}
}

// record is the part of a Service port in the tables that its route does not determine: the
// slots of its backends, and its id, if it remembers its clients.
type record struct {
	slots pools // by pool; nil: in the order of the route
	id    uint32
}

func (r record) empty() bool { return r.slots[0] == nil && r.slots[1] == nil && r.id == 0 }

// complete fills in the slots that are in order.
func (r record) complete(p *route.Port) record {
	for pool := range r.slots {
		if r.slots[pool] == nil {
			r.slots[pool] = p.Backends(route.Pool(pool))
		}
	}
	return r
}

// balance returns the rows that an action chooses among.
func (r record) balance(p *route.Port, a action, pool route.Pool) pools {
	switch {
	case a.kind() < kindPlain:
		return pools{}
	case a.sticky():
		return r.slots.reachable(pool, p.Backends(pool))
	}
	backends := r.slots[pool]
	return pools{backends[:min(len(backends), maxBackends)]}
}

// history has the records of all Service ports. A plan changes a draft of it.
type history struct {
	ports  map[portKey]record
	taken  map[uint32]bool // ids
	newest uint32          // the newest id
}

func newHistory(newest uint32) *history {
	return &history{ports: map[portKey]record{}, taken: map[uint32]bool{}, newest: newest}
}

// draft is a history with changes of a plan that is not applied yet.
type draft struct {
	*history
	changed map[portKey]record
	given   map[uint32]bool // ids, new or adopted
	newest  uint32
}

func newDraft(h *history) *draft {
	return &draft{history: h, changed: map[portKey]record{}, given: map[uint32]bool{}, newest: h.newest}
}

// note records a change of the record of a port.
func (d *draft) note(k portKey, r record) {
	if _, known := d.ports[k]; known || !r.empty() {
		d.changed[k] = r
	}
}

// learn applies the changes to the history.
func (d *draft) learn() {
	d.history.newest = d.newest
	if len(d.ports) == 0 { // a comparison, whose history is new
		maps.DeleteFunc(d.changed, func(_ portKey, r record) bool { return r.empty() })
		d.ports, d.taken = d.changed, d.given
		return
	}
	for k, r := range d.changed {
		if id := d.ports[k].id; id != r.id {
			delete(d.taken, id)
		}
		if r.empty() {
			delete(d.ports, k)
			continue
		}
		d.ports[k] = r
		if r.id != 0 {
			d.taken[r.id] = true
		}
	}
}

// found is the state of a frontend in the kernel.
type found struct {
	rows [2]pools
	id   uint32
}

// arrange returns the slots of the pools of a port, and its id. A backend keeps its slot;
// if the record is empty, slots are those of the first frontend in the kernel that has any.
func (d *draft) arrange(l *layout, k portKey, p *route.Port, olds []found) record {
	last, known := d.ports[k]
	next := record{id: d.identify(last.id, p, olds)}
	for pool := range next.slots {
		want := p.Backends(route.Pool(pool))
		if len(want) == 0 {
			continue
		}
		slots := lastSlots(l, p, route.Pool(pool), olds)
		switch {
		case p.Affinity == 0:
			slots = ledger.Arrange(slots, want)
		case known && last.slots[pool] != nil:
			slots = renumber(last.slots[pool], want)
		default:
			slots = renumber(slots, want)
		}
		if p.Affinity > 0 || &slots[0] != &want[0] {
			next.slots[pool] = slots
		}
	}
	d.note(k, next)
	return next
}

// lastSlots returns the slots of a pool at the first frontend that had any.
func lastSlots(l *layout, p *route.Port, pool route.Pool, olds []found) []netip.AddrPort {
	for j, old := range olds {
		a := l.shape(p, &p.Frontends[j])
		of := route.Pool(0)
		if p.Affinity > 0 {
			of = pool
		}
		switch {
		case a.first.kind() == kindSplit && a.outsidePool == pool && len(old.rows[1][of]) > 0:
			return old.rows[1][of]
		case a.insidePool == pool && len(old.rows[0][of]) > 0:
			return old.rows[0][of]
		}
	}
	return nil
}

// renumber assigns each of the wanted backends, which are sorted, a slot among those that
// clients draw from. A backend also keeps the slots that it had, for clients that drew
// another number when there were more backends, so that it may have several. If there are
// too few slots, it keeps the lowest.
func renumber(before, want []netip.AddrPort) []netip.AddrPort {
	if len(before) == 0 || slices.Equal(before, want) {
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
	if slices.Equal(slots, want) {
		return want
	}
	return slots
}

// reachable returns the rows of a pool: slots of both pools that have one of these
// backends.
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

// Ids of ports are odd and exceed all numbers, so that an id is not a number in either byte
// order. The highest ones are never used, so that counting does not overflow.
const (
	firstID = 1<<20 | 1
	lastID  = 1 << 31
	idGap   = 1 << 13 // skipped at start: the map may still have clients of deleted ports
)

func isID(id uint32) bool { return id >= firstID && id < lastID && id%2 == 1 }

// identify returns the id of a port that remembers its clients: its current one, the one
// that it has in the kernel, or one that no port has had for a long time. A port without
// backends has none, so that clients draw again once it has some.
func (d *draft) identify(last uint32, p *route.Port, olds []found) uint32 {
	if p.Affinity == 0 || len(p.Cluster)+len(p.Local) == 0 {
		return 0
	}
	if last != 0 {
		return last
	}
	id := d.adoptable(olds)
	for id == 0 || d.used(id) {
		d.newest = max(d.newest+2, firstID)
		if d.newest >= lastID {
			d.newest = firstID
		}
		id = d.newest
	}
	d.given[id] = true
	return id
}

func (d *draft) used(id uint32) bool { return d.taken[id] || d.given[id] }

// adoptable returns the first free id that the frontends have in the kernel; 0 if they have
// none.
func (d *draft) adoptable(olds []found) uint32 {
	for _, old := range olds {
		if isID(old.id) && !d.used(old.id) {
			return old.id
		}
	}
	return 0
}

// idIn returns the id in an element.
func idIn(e nft.Element) uint32 {
	if len(e.Data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(e.Data))
}
