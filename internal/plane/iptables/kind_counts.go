package iptables

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	// countPeriod is the time between two readings of the counters. With 10,000 Services a reading takes a second or
	// two of one processor, so the period is at least countFactor times as long.
	countPeriod = 2 * time.Second
	countFactor = 30

	// asking is for how long counters are read after somebody has asked for them.
	asking = time.Minute
)

// counters reads counters of rules: iptables.Tools.
type counters interface {
	Translated(ctx context.Context, f iptables.Family) (map[string]uint64, error)
}

// counts has the new connections to the backends of Services since it was read first. It reads in the background, and
// only while somebody asks. A rule that is written again begins at 0: what it counted since it was read last is lost.
type counts struct {
	*work.Loop

	kernel   counters
	families []route.Family

	mu      sync.Mutex
	routes  *route.Snapshot // nil: nobody has asked
	asked   time.Time
	next    time.Time     // of the next reading, at the earliest
	counted plane.Counted // nil: nothing was read

	tally *plane.Tally // used by update only
}

func newCounts(kernel counters, families []route.Family, failed func(error)) *counts {
	c := &counts{kernel: kernel, families: families, tally: plane.NewTally()}
	c.Loop = work.New(c.update, failed)
	return c
}

// Traffic implements plane.Opened. It returns what was read last; nil before the first reading.
func (c *counts) Traffic(_ context.Context, routes *route.Snapshot) (plane.Counted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes, c.asked = routes, time.Now()
	c.Wake()
	return c.counted, nil
}

// update reads the counters, unless nobody has asked, or the last reading was a moment ago. It returns the time until
// the next reading; 0: none is until somebody asks.
func (c *counts) update(ctx context.Context) (next time.Duration, err error) {
	began := time.Now()
	c.mu.Lock()
	routes, idle, wait, first := c.routes, began.Sub(c.asked) > asking, c.next.Sub(began), c.counted == nil
	c.mu.Unlock()
	if routes == nil || idle || wait > 0 {
		return max(0, wait), nil
	}
	if !first { // what earlier runs of the program have counted is left out
		c.tally.Read(routes)
	}
	for _, ip := range c.families {
		chains, err := c.kernel.Translated(ctx, iptables.Family(ip))
		if err != nil {
			return 0, err
		}
		to := sync.OnceValue(func() map[string]plane.Endpoint { return endpoints(routes, ip) })
		for chain, n := range chains {
			r := plane.Reading{Object: plane.Object{In: ip.String(), Name: chain}, N: n, Until: began}
			c.tally.Add(r, func(netip.AddrPort) (at plane.Endpoint, known bool) {
				if !first {
					at, known = to()[chain]
				}
				return at, known
			})
		}
	}
	c.tally.Forget(began)
	now := time.Now()
	next = max(countPeriod, countFactor*now.Sub(began))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted, c.next = c.tally.Counted(), now.Add(next)
	return next, nil
}

// endpoints returns the backends of all Services by the names of their chains.
func endpoints(routes *route.Snapshot, ip route.Family) map[string]plane.Endpoint {
	all := map[string]plane.Endpoint{}
	for svc := range routes.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Family != ip {
				continue
			}
			port := p.ID(svc.Name)
			name := idOf(port)
			for _, b := range slices.Concat(p.Cluster, p.Local) {
				all[name.endpoint(b.String())] = plane.Endpoint{Port: port, Backend: b}
			}
		}
	}
	return all
}
