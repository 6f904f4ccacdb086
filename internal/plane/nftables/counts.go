package nftables

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// New connections are counted by frontend and backend, in elements of a set that rules add. Elements of the maps of
// backends could count as well, but at each change of a backend they begin again, and 300,000 of them with a counter for
// each processor take hundreds of megabytes; the set has only pairs that had a connection within countedFor.

const (
	// maxCounts bounds the memory of a table: an element takes some 150 bytes, and 16 for each processor. Connections of
	// further pairs are served, but not counted.
	maxCounts = 1 << 16

	// countedFor is for how long an element stays without a new connection. A tally that is read more often than this
	// misses nothing.
	countedFor = time.Hour

	counting = "count" // the chain
)

// count returns the rules that count a connection after its translation. Each names its protocol, as nft does not know
// otherwise that the port of the frontend is a port.
func (b builder) count() (rules []nft.Rule) {
	for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		rules = append(rules, nft.NewRule(nft.Of(uint8(protocol)), nft.Count(b.name(countElement), countedFor,
			nft.OriginalDestination(b.f), nft.L4Proto(), nft.OriginalDestinationPort(), nft.Destination(b.f), nft.AnswersFrom(),
		)))
	}
	return rules
}

// counters reads the counters of a set: nft.Conn.
type counters interface {
	Counters(ctx context.Context, t nft.Table, set string) ([]nft.Counter, error)
}

// tally has the sums of new connections since it was read first. They never fall, although elements come and go.
type tally struct {
	kernel counters
	set    string
	now    func() time.Time

	mu   sync.Mutex
	last map[string]listed // by the key of an element
	sums map[route.PortID]*sum
}

// listed is an element as it was listed last. Until it expires it may be missing in a listing by chance.
type listed struct {
	packets uint64
	expires time.Time
}

// sum has the connections to a port, and those to each backend; former backends stay until their elements expire.
type sum struct {
	all      uint64
	backends map[netip.AddrPort]backendSum
}

type backendSum struct {
	all     uint64
	expires time.Time // the last of its elements
}

func newTally(kernel counters) *tally {
	return &tally{
		kernel: kernel, set: newLayout()[countElement].Name, now: time.Now,
		last: map[string]listed{}, sums: map[route.PortID]*sum{},
	}
}

// Traffic implements plane.Opened.
func (t *tally) Traffic(ctx context.Context, routes *route.Snapshot) (plane.Counted, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.read(ctx, routes); err != nil {
		return nil, err
	}
	all := make(plane.Counted, len(t.sums))
	for id, s := range t.sums {
		of := plane.PortTraffic{
			Traffic:  plane.Traffic{plane.Connections: s.all},
			Backends: make(map[netip.AddrPort]plane.Traffic, len(s.backends)),
		}
		for b, n := range s.backends {
			of.Backends[b] = plane.Traffic{plane.Connections: n.all}
		}
		all[id] = of
	}
	return all, nil
}

// read adds what the kernel has counted since the last call for Services of a snapshot; nil: of none.
func (t *tally) read(ctx context.Context, routes *route.Snapshot) error {
	ports, now := portsOf(routes), t.now()
	for _, ip := range route.Families() {
		elements, err := t.kernel.Counters(ctx, tableFor(ip), t.set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			grown := t.grown(e, now)
			if id, known := ports.find(ip, e.Key); known {
				t.add(id, backendIn(e.Key[frontendWidth(ip):]), grown, now.Add(e.Expires))
			}
		}
	}
	t.forget(routes, now)
	return nil
}

// grown returns what an element has counted since it was listed last. One with less than then is a new one.
func (t *tally) grown(e nft.Counter, now time.Time) uint64 {
	before := t.last[e.Key].packets
	t.last[e.Key] = listed{e.Packets, now.Add(e.Expires)}
	if e.Packets < before {
		return e.Packets
	}
	return e.Packets - before
}

func (t *tally) add(id route.PortID, backend netip.AddrPort, grown uint64, expires time.Time) {
	s := t.sums[id]
	if s == nil {
		s = &sum{backends: map[netip.AddrPort]backendSum{}}
		t.sums[id] = s
	}
	s.all += grown
	of := s.backends[backend]
	of.all += grown
	if expires.After(of.expires) {
		of.expires = expires
	}
	s.backends[backend] = of
}

// forget forgets elements that have expired, ports that are gone, and backends that are gone and have no element.
func (t *tally) forget(routes *route.Snapshot, now time.Time) {
	for k, e := range t.last {
		if e.expires.Before(now) {
			delete(t.last, k)
		}
	}
	for id, s := range t.sums {
		p := portIn(routes.Service(id.Service), id)
		if p == nil {
			delete(t.sums, id)
			continue
		}
		for b, of := range s.backends {
			if of.expires.Before(now) && !slices.Contains(p.Cluster, b) && !slices.Contains(p.Local, b) {
				delete(s.backends, b)
			}
		}
	}
}

// portIn returns a port of a Service, which may be nil; nil: it is gone.
func portIn(svc *route.Service, id route.PortID) *route.Port {
	if svc == nil {
		return nil
	}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.ID(svc.Name) == id {
			return p
		}
	}
	return nil
}

// portsByFront finds ports by their frontends.
type portsByFront map[key]route.PortID

func portsOf(routes *route.Snapshot) portsByFront {
	if routes == nil {
		return nil
	}
	ports := make(portsByFront, routes.Len())
	for svc := range routes.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for j := range p.Frontends {
				ports[keyOf(p, &p.Frontends[j])] = p.ID(svc.Name)
			}
		}
	}
	return ports
}

// find returns the port of an element. A frontend with its address comes before a NodePort, as in rules.
func (ports portsByFront) find(ip route.Family, element string) (id route.PortID, known bool) {
	frontend := element[:frontendWidth(ip)]
	if id, known = ports[key{ip, frontendElement.in(byAddress), frontend}]; known {
		return id, true
	}
	id, known = ports[key{ip, frontendElement.in(byNodePort), frontend[tableFor(ip).Family.AddrLen():]}]
	return id, known
}

// frontendWidth returns how many bytes of the key of an element are the frontend; the others are the backend.
func frontendWidth(ip route.Family) int {
	return tableFor(ip).Family.AddrLen() + len(nft.Key{}.Proto(0).Port(0))
}
