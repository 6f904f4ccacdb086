package nftables

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Rules count new connections by frontend and backend, in elements of a set that they add themselves. Counters in the
// maps of backends would restart at each change of a backend, and 300,000 elements with a counter for each processor
// would take hundreds of megabytes. The set has only pairs that had a new connection within countedFor.

const (
	// maxCounts bounds the memory of the set: an element takes some 150 bytes, and 16 for each processor. Connections of
	// further pairs work, but are not counted.
	maxCounts = 1 << 16

	// countedFor is the time after which an element without a new connection expires. A tally that is read more often
	// misses no connection.
	countedFor = time.Hour
)

// count returns the rules that count a connection after its translation, and clear the priority. Each rule matches a
// protocol, because nft needs it to print the port of the frontend. The rules are in the base chains, because a jump
// would take time.
func (b builder) count() (rules []nft.Rule) {
	for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		p := uint8(protocol)
		rules = append(rules, nft.NewRule(nft.OfProtocol(p), nft.Translated(), nft.ClearPriority(),
			nft.Count(b.name(countElement), countedFor, nft.Destination(b.f), nft.PortOf(p), nft.OriginalDestination(b.f),
				nft.L4Proto(), nft.OriginalDestinationPort())))
	}
	return rules
}

// counters reads the counters of a set. nft.Conn implements it.
type counters interface {
	Counters(ctx context.Context, t nft.Table, set string, fn func(nft.Counter)) error
}

// counts sums up new connections.
type counts struct {
	kernel counters
	set    string
	now    func() time.Time

	mu     sync.Mutex
	tally  *plane.Tally
	forget time.Time // when to delete old items of the tally next
}

func newCounts(kernel counters) *counts {
	return &counts{
		kernel: kernel, set: newLayout()[countElement].Name, now: time.Now, tally: plane.NewTally(),
	}
}

// Traffic implements plane.Opened.
func (c *counts) Traffic(ctx context.Context, routes *route.Snapshot) (plane.Counted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.read(ctx, sync.OnceValue(func() portsByFront { return portsOf(routes) })); err != nil {
		return nil, err
	}
	if now := c.now(); !now.Before(c.forget) {
		c.tally.Forget(routes, now)
		c.forget = now.Add(time.Minute)
	}
	return c.tally.Counted(), nil
}

// read adds the connections that the kernel has counted since the last call. If a listing misses an element by chance,
// the next one counts its connections, because the tally keeps the last value of an element until it expires.
func (c *counts) read(ctx context.Context, ports func() portsByFront) error {
	for _, ip := range route.Families() {
		now := c.now()
		if err := c.kernel.Counters(ctx, tableFor(ip), c.set, func(e nft.Counter) {
			expires := now.Add(e.Expires)
			grown := c.tally.Grown(e.Key, e.Packets, expires)
			if grown == 0 {
				return
			}
			backend, frontend := e.Key[:backendWidth(ip)], e.Key[backendWidth(ip):]
			if id, known := ports().find(ip, frontend); known {
				c.tally.Add(id, backendIn(backend), grown, expires)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// portsByFront finds ports by their frontends.
type portsByFront map[key]route.PortID

// noPorts makes read skip the connections counted so far.
func noPorts() portsByFront { return nil }

func portsOf(routes *route.Snapshot) portsByFront {
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

// find returns the port of a frontend. A frontend with this address takes precedence over a NodePort, as in the rules.
func (ports portsByFront) find(ip route.Family, frontend string) (id route.PortID, known bool) {
	if id, known = ports[key{ip, frontendElement.in(byAddress), frontend}]; known {
		return id, true
	}
	id, known = ports[key{ip, frontendElement.in(byNodePort), frontend[tableFor(ip).Family.AddrLen():]}]
	return id, known
}

// backendWidth returns the number of bytes of the backend at the start of an element's key. The frontend follows.
func backendWidth(ip route.Family) int { return tableFor(ip).Family.AddrLen() + len(nft.Key{}.Port(0)) }
