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

// New connections are counted by frontend and backend, in elements of a set that rules add. Elements of the maps of
// backends could count as well, but at each change of a backend they begin again, and 300,000 of them with a counter
// for each processor take hundreds of megabytes; the set has only pairs that had a connection within countedFor.

const (
	// maxCounts bounds the memory of a table: an element takes some 150 bytes, and 16 for each processor. Connections of
	// further pairs are served, but not counted.
	maxCounts = 1 << 16

	// countedFor is for how long an element stays without a new connection. A tally that is read more often than this
	// misses nothing.
	countedFor = time.Hour
)

// count returns the rules that count a connection after its translation, and clear the priority. Each names its
// protocol, as nft does not know otherwise that the port of the frontend is a port. They are part of the base chains: a
// jump would take time.
func (b builder) count() (rules []nft.Rule) {
	for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		p := uint8(protocol)
		rules = append(rules, nft.NewRule(nft.OfProtocol(p), nft.Translated(), nft.ClearPriority(),
			nft.Count(b.name(countElement), countedFor, nft.Destination(b.f), nft.PortOf(p), nft.OriginalDestination(b.f),
				nft.L4Proto(), nft.OriginalDestinationPort())))
	}
	return rules
}

// counters reads the counters of a set: nft.Conn.
type counters interface {
	Counters(ctx context.Context, t nft.Table, set string, fn func(nft.Counter)) error
}

// counts has the new connections since it was read first.
type counts struct {
	kernel counters
	set    string
	now    func() time.Time

	mu     sync.Mutex
	tally  *plane.Tally
	forget time.Time // not before
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

// read adds what the kernel has counted for ports since the last call. An element that a listing misses by chance is
// the same as long as it has not expired.
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

// noPorts is for read, if nothing is to be added.
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

// find returns the port of a frontend. One with its address comes before a NodePort, as in rules.
func (ports portsByFront) find(ip route.Family, frontend string) (id route.PortID, known bool) {
	if id, known = ports[key{ip, frontendElement.in(byAddress), frontend}]; known {
		return id, true
	}
	id, known = ports[key{ip, frontendElement.in(byNodePort), frontend[tableFor(ip).Family.AddrLen():]}]
	return id, known
}

// backendWidth returns how many bytes of the key of an element are the backend; the others are the frontend.
func backendWidth(ip route.Family) int { return tableFor(ip).Family.AddrLen() + len(nft.Key{}.Port(0)) }
