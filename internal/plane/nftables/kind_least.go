package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	// countPeriod is the time between two counts of connections. A count takes about 10 ms for 262,144 hash buckets of
	// conntrack, and longer with more connections. The period is at least countFactor times as long.
	countPeriod = time.Second
	countFactor = 20

	// settling is for how many counts the slots of a Service still move after its last connection has ended.
	settling = 20
)

// flows lists conntrack entries: conntrack.Table.
type flows interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
}

// counter counts the connections to backends of Services with least connections. It sleeps while there are none.
type counter struct {
	*work.Loop

	table flows
	ready chan struct{} // has an item after a count

	mu       sync.Mutex
	services map[cluster.Name]*counted
	live     *Live     // the last count, until a plan takes it
	ended    time.Time // the last count
	next     time.Time // of the next count, at the earliest
}

// counted is a Service with least connections.
type counted struct {
	service *route.Service
	targets []plane.Target
	moves   int // for how many more counts, without connections
}

func newCounter(table flows, failed func(error)) *counter {
	c := &counter{table: table, ready: make(chan struct{}, 1), services: map[cluster.Name]*counted{}}
	c.Loop = work.New(c.update, failed)
	return c
}

// Applied implements plane.Follower.
func (c *counter) Applied(change route.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range change.Touched {
		all := targets(t.New)
		if len(all) == 0 {
			delete(c.services, t.Name)
			continue
		}
		c.services[t.Name] = &counted{t.New, all, settling}
		c.Wake()
	}
}

// targets returns the backends of a Service that are chosen by their connections, those of two pools twice.
func targets(svc *route.Service) (all []plane.Target) {
	if svc == nil {
		return nil
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, b := range slices.Concat(p.Cluster, p.Local) {
			if least(p) {
				all = append(all, plane.Target{Protocol: p.Protocol, Backend: b})
			}
		}
	}
	return all
}

// Due implements plane.Opened: a count is to be written.
func (c *counter) Due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil {
		return time.Time{}
	}
	return c.ended
}

// take returns the last count once.
func (c *counter) take() *Live {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := c.live
	c.live = nil
	return live
}

// update counts, unless the last count was a moment ago. It returns the time until the next count; 0: no Service needs
// one.
func (c *counter) update(ctx context.Context) (next time.Duration, err error) {
	began := time.Now()
	c.mu.Lock()
	services, wait := maps.Clone(c.services), c.next.Sub(began)
	c.mu.Unlock()
	if len(services) == 0 || wait > 0 {
		return max(0, wait), nil
	}
	live, err := c.count(ctx, services)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	next = max(countPeriod, countFactor*now.Sub(began))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next = now.Add(next); len(live.Services) == 0 {
		return next, nil
	}
	c.live, c.ended = live, now
	select {
	case c.ready <- struct{}{}:
	default: // the loop will see it
	}
	return next, nil
}

// count counts connections that this node translates and that nobody closes yet. The kernel selects them by the port of
// the backend, so Services with the same target port take one listing.
func (c *counter) count(ctx context.Context, services map[cluster.Name]*counted) (*Live, error) {
	live := &Live{Services: map[cluster.Name]*route.Service{}, Connections: map[plane.Target]int{}}
	wanted, filters := map[plane.Target]bool{}, map[conntrack.Filter]bool{}
	for _, s := range services {
		for _, at := range s.targets {
			wanted[at] = true
			filters[filter(at)] = true
		}
	}
	for f := range filters {
		err := c.table.Each(ctx, f, func(e conntrack.Entry) error {
			at := plane.Target{Protocol: cluster.Protocol(e.Protocol), Backend: e.ReplySrc}
			if wanted[at] && e.Translated() && !e.Closing() {
				live.Connections[at]++
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for name, s := range services {
		for _, at := range s.targets {
			if live.Connections[at] > 0 {
				s.moves = settling
			}
		}
		if s.moves > 0 {
			s.moves--
			live.Services[name] = s.service
		}
	}
	return live, nil
}

// filter selects connections to the port of a target.
func filter(at plane.Target) conntrack.Filter {
	f := conntrack.Filter{
		Family: conntrack.IPv4, Protocol: uint8(at.Protocol), ReplySrc: netip.AddrPortFrom(netip.Addr{}, at.Backend.Port()),
	}
	if at.Backend.Addr().Is6() {
		f.Family = conntrack.IPv6
	}
	return f
}
