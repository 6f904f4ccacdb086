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

// Rules count new connections by frontend and backend, in elements of sets that they add themselves. Counters in the
// maps of backends would restart at each change of a backend, and 300,000 elements with a counter for each processor
// would take hundreds of megabytes. The sets have only pairs that had a new connection within countedFor.

const (
	// maxCounts bounds the memory of a set: an element takes some 150 bytes, and 16 for each processor. Connections of
	// further pairs work, but are not counted.
	maxCounts = 1 << 16

	// countedFor is the time after which an element without a new connection expires. A tally that is read more often
	// misses no connection.
	countedFor = time.Hour
)

// counting is a set of counts, and the connections that it counts.
type counting struct {
	set      object
	name     string
	protocol cluster.Protocol
	last     []byte // the last bit of the addresses of backends; empty: all
}

// countings returns the sets of counts. TCP has two, because the kernel walks a set from its start for each part of a
// listing.
func countings() []counting {
	return []counting{
		{tcpCount, "tcp-counts", cluster.TCP, []byte{0}},
		{oddTCPCount, "odd-tcp-counts", cluster.TCP, []byte{1}},
		{udpCount, "udp-counts", cluster.UDP, nil},
		{sctpCount, "sctp-counts", cluster.SCTP, nil},
	}
}

// count returns the rules that count a connection after its translation, and clear the priority. Each rule matches a
// protocol, because nft needs it to print the port of the frontend. The rules are in the base chains, because a jump
// would take time.
func (b builder) count() (rules []nft.Rule) {
	for _, c := range countings() {
		p := uint8(c.protocol)
		parts := []nft.Statement{nft.OfProtocol(p)}
		for _, bit := range c.last {
			parts = append(parts, nft.LastBit(b.f, bit))
		}
		rules = append(rules, nft.NewRule(append(parts, nft.Translated(), nft.ClearPriority(), nft.Count(b.name(c.set),
			nft.Destination(b.f), nft.PortOf(p), nft.OriginalDestination(b.f), nft.OriginalDestinationPort()))...))
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
	now    func() time.Time

	mu     sync.Mutex
	tally  *plane.Tally
	forget time.Time // when to delete old items of the tally next
}

func newCounts(kernel counters) *counts {
	return &counts{kernel: kernel, now: time.Now, tally: plane.NewTally()}
}

// Traffic implements plane.Opened.
func (c *counts) Traffic(ctx context.Context, routes *route.Snapshot) (plane.Counted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.Read(routes)
	if err := c.read(ctx, sync.OnceValue(func() portsByFront { return portsOf(routes) })); err != nil {
		return nil, err
	}
	if now := c.now(); !now.Before(c.forget) {
		c.tally.Forget(now)
		c.forget = now.Add(time.Minute)
	}
	return c.tally.Counted(), nil
}

// read adds the connections that the kernel has counted since the last call. If a listing misses an element by chance,
// the next one counts its connections, because the tally keeps the last value of an element until it expires.
func (c *counts) read(ctx context.Context, ports func() portsByFront) error {
	for _, ip := range route.Families() {
		for _, of := range countings() {
			now := c.now()
			if err := c.kernel.Counters(ctx, tableFor(ip), of.name, func(e nft.Counter) {
				r := plane.Reading{Object: of.name + e.Key, N: e.Packets, Until: now.Add(e.Expires)}
				c.tally.Add(r, func() (at plane.Endpoint, known bool) {
					half := len(e.Key) / 2 // backend . frontend
					at.Backend = backendIn(e.Key[:half])
					at.Port, known = route.Find(ports(), of.protocol, backendIn(e.Key[half:]))
					return at, known
				})
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// portsByFront finds ports by their frontends.
type portsByFront map[route.Key]route.PortID

// noPorts makes read skip the connections counted so far.
func noPorts() portsByFront { return nil }

func portsOf(routes *route.Snapshot) portsByFront {
	ports := make(portsByFront, routes.Len())
	for svc := range routes.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for j := range p.Frontends {
				ports[p.Key(&p.Frontends[j])] = p.ID(svc.Name)
			}
		}
	}
	return ports
}
