package nftables

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Session affinity. All Services keep their clients in one map, clients, by id of
// the Service port and client address; an element holds the number of a backend. What a
// number means, the rows of a frontend say. A backend keeps its number as long as it
// lives, so the numbers in use have gaps.
//
// One statement serves known and new clients: an update draws a number for a client
// that is not in the map, and renews the time of one that is, without changing its
// number. Where the number leads to no backend, the client is forgotten and the next
// update draws again. See docs/decisions/0020-session-affinity-in-one-map.md.

// maxClients bounds the memory of a table. A client beyond it is served, but not
// remembered.
const maxClients = 1 << 20

func clientMap() nft.Set {
	return nft.Set{
		Name: "clients", Key: []nft.Type{nft.ClassID, nft.Addr}, Data: []nft.Type{nft.Index},
		Dynamic: true, Size: maxClients,
	}
}

// attempts is how often a connection draws for a client to remember, and, if the map
// is full, how often without. Four in ten draws find a backend at least, so that one
// connection in 10^5 needs more attempts, at most.
const attempts = 24

// maxSticky is how many backends of a pool can have numbers.
const maxSticky = 1 << 14

// drawn returns among how many numbers clients of n backends draw: some more than there
// are backends, so that some may go before others need another number; a power of two,
// so that few changes need another chain.
func drawn(n int) int {
	n = min(n, maxSticky)
	return 1 << bits.Len(uint(n+(n+3)/4-1))
}

// Numbers of the pool Cluster are 1, 2 and so on; those of Local lie above them.
const localNumbers = 1 << 16

// number returns the number of a slot of a pool.
func number(pool, slot int) uint32 { return uint32(pool*localNumbers + slot + 1) }

// slotOf is the reverse of number.
func slotOf(number uint32) (pool, slot int, ok bool) {
	pool, slot = int(number/localNumbers), int(number%localNumbers)-1
	return pool, slot, pool < len(pools{}) && slot >= 0
}

// A way that remembers clients has all that its chain depends on: from the lowest bit
// on, the timeout in seconds, the kind, the pool, and the logarithm of drawn.
// The space is where other ways have it.
const (
	timeoutBits     = 17
	kindAt          = 17
	poolAt          = 19
	stickyBit   way = 1 << 23
	drawnAt         = 26
)

func (s *space) stickyWay(kind uint16, timeout time.Duration, pool route.Pool, backends int) way {
	seconds := min(way(timeout/time.Second), 1<<timeoutBits-1)
	exponent := way(bits.Len(uint(drawn(backends) - 1)))
	return stickyBit | way(s.base)<<16 | seconds | way(kind-kindPlain)<<kindAt | way(pool)<<poolAt | exponent<<drawnAt
}

func (w way) sticky() bool           { return w&stickyBit != 0 }
func (w way) stickyKind() uint16     { return kindPlain + uint16(w>>kindAt&3) }
func (w way) timeout() time.Duration { return time.Duration(w&(1<<timeoutBits-1)) * time.Second }
func (w way) pool() route.Pool       { return route.Pool(w >> poolAt & 1) }
func (w way) drawn() int             { return 1 << (w >> drawnAt & 15) }

// stickyChain names the chain of a way without its space.
func (w way) stickyChain() string {
	name := map[uint16]string{kindPlain: "sticky", kindMasquerade: "sticky-masquerade", kindOffPod: "sticky-off-pod", kindOutside: "sticky-outside"}[w.kind()]
	if w.pool() == route.Local {
		name += "-local"
	}
	return fmt.Sprintf("%s-%d-%ds", name, w.drawn(), w.timeout()/time.Second)
}

// keeps names the chain in which clients of a way are remembered.
func keeps(chain string) string { return "draw-and-keep-" + chain }

// draws names the chain that serves clients of a way when the map of clients is full.
func draws(chain string) string { return "draw-" + chain }

// sticky returns the chain of a way that remembers clients, and the two it uses. All
// look-ups are in chains that are always there; see draw.
func (b builder) sticky(s *space, w way, chain nft.Chain) []nft.Chain {
	backends := s.backends
	if w.kind() == kindOutside {
		backends = s.outsideBackends
	}
	const inner = 4
	first, n := int(number(int(w.pool()), 0)), w.drawn()
	recall := nft.NewRule(nft.Jump(recalls(backends)))
	keep := nft.Chain{Name: keeps(chain.Name), Rules: slices.Repeat([]nft.Rule{
		nft.NewRule(nft.Remember(b.clients.Name, w.timeout(), nft.Random(first, n), b.client()...)), recall,
	}, inner)}
	draw := nft.Chain{Name: draws(chain.Name), Rules: slices.Repeat([]nft.Rule{nft.NewRule(nft.Draw(first, n)), recall}, inner)}
	chain.Rules = append(b.before(w.kind()), nft.NewRule(nft.Jump(s.affinity.Name)))
	for _, c := range []nft.Chain{keep, draw} {
		chain.Rules = append(chain.Rules, slices.Repeat([]nft.Rule{nft.NewRule(nft.Jump(c.Name))}, attempts/inner)...)
	}
	chain.Rules = orDrop(chain.Rules)
	return []nft.Chain{draw, keep, chain}
}

// client is what a client is found by, once the priority is the id of the port. In
// this order nft 1.0.6 can load what it lists of IPv6.
func (b builder) client() []nft.Field { return []nft.Field{nft.Priority(), nft.Source(b.table.Family)} }

// identification is the chain that makes the priority the id of the port.
func (b builder) identification(s *space) nft.Chain {
	return nft.Chain{Name: s.affinity.Name, Rules: []nft.Rule{b.identify(s)}}
}

func (b builder) identify(s *space) nft.Rule {
	return nft.NewRule(nft.SetPriority(s.affinity.Name, s.key(b.table.Family)...))
}

// recollection is the chain that sends a client to the backend it keeps, or, if the
// priority is a number and no id, to the one with that number. It returns if there is
// none, after it has forgotten the client and made the priority the id again.
func (b builder) recollection(s *space, backends nft.Set) nft.Chain {
	f := b.table.Family
	return nft.Chain{Name: recalls(backends), Rules: []nft.Rule{
		nft.NewRule(nft.SetPriority(b.clients.Name, b.client()...)),
		nft.NewRule(nft.TranslateFrom(f, backends.Name, append(s.key(f), nft.Priority())...)),
		b.identify(s),
		nft.NewRule(nft.Forget(b.clients.Name, b.client()...)),
	}}
}

// recalls names the chain that looks clients up, and then a map of backends.
func recalls(backends nft.Set) string { return "at-clients-of-" + backends.Name }

// renumber gives each of the backends that are wanted, which are sorted, a slot among
// those that clients draw from. A backend keeps the slots it had, so it may have
// several, for clients that drew another one when there were more backends; where
// space gets scarce, the lowest.
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
	slots = fill(slots, want, placed)
	for len(slots) > 0 && !slots[len(slots)-1].IsValid() {
		slots = slots[:len(slots)-1]
	}
	if slices.Equal(slots, want) {
		return want
	}
	return slots
}

// reachable returns the slots of both pools that hold backends of one.
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

// Ids of ports are odd and begin above all numbers: in neither order of bytes is one
// a number. The highest ones are left to nobody, so that counting does not overflow.
const (
	firstID = 1<<20 | 1
	lastID  = 1 << 31
	idGap   = 1 << 13 // left free at start: clients of ports that went just before may be there still
)

func isID(id uint32) bool { return id >= firstID && id < lastID && id%2 == 1 }

// identify returns the id of a port that remembers its clients: the one it has, or had
// in the kernel, or else one that none had for a long time. A port without backends has
// none: who comes when there are some again draws anew.
func (d *diff) identify(k portKey, p *route.Port, olds []front) uint32 {
	if p.Affinity == 0 || len(p.Cluster)+len(p.Local) == 0 {
		d.forget(k)
		return 0
	}
	if id, ok := d.belief.ids[k]; ok {
		return id
	}
	id := d.adoptable(olds)
	for id == 0 || d.belief.taken[id] {
		d.newest = max(d.newest+2, firstID)
		if d.newest >= lastID {
			d.newest = firstID
		}
		id = d.newest
	}
	d.belief.ids[k], d.belief.taken[id] = id, true
	return id
}

// adoptable returns the first id that fronts have in the kernel; 0: they have none.
func (d *diff) adoptable(olds []front) uint32 {
	for _, old := range olds {
		for _, s := range old.singles {
			if id := idIn(s.element); d.layout.hasIDs(s.set) && isID(id) && !d.belief.taken[id] {
				return id
			}
		}
	}
	return 0
}

func (l *layout) hasIDs(set *nft.Set) bool {
	return set == &l.spaces[byAddress].affinity || set == &l.spaces[byNodePort].affinity
}

// forget ends the use of a port's id.
func (d *diff) forget(k portKey) {
	delete(d.belief.taken, d.belief.ids[k])
	delete(d.belief.ids, k)
}

// idIn returns the data of an element of a map of ids.
func idIn(e nft.Element) uint32 {
	if len(e.Data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(e.Data))
}

// newestID finds the newest id that is in the kernel, from which to go on.
func (d *diff) newestID(seen map[nft.Table]*nft.State) {
	start := d.newest == 0
	for _, state := range seen {
		for i := range d.layout.spaces {
			for _, e := range state.Sets[d.layout.spaces[i].affinity.Name].Elements {
				if id := idIn(e); isID(id) {
					d.newest = max(d.newest, id)
				}
			}
		}
	}
	if start && d.newest > 0 {
		d.newest += idGap
	}
}
