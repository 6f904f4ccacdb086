package traffic

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ErrNotCounted means that the plane does not count connections.
var ErrNotCounted = errors.New("this mode does not count the connections of Services")

// MeterOptions are the sources of a Meter. Each may be nil.
type MeterOptions struct {
	Traffic func(context.Context, *route.Snapshot) (plane.Counted, error) // plane.Opened.Traffic

	// Failed returns the number of failed connections to each backend, as a new map. It is for planes whose Traffic lacks
	// these numbers.
	Failed func() map[plane.Target]plane.Failed
}

// Meter sums up the counters of a plane. Its sums only grow, although counters in the kernel restart when their object
// is replaced, and disappear with their backend. Its methods are safe for concurrent use.
type Meter struct {
	opt MeterOptions

	mu     sync.Mutex
	ports  map[route.PortID]*sums // the Family of the keys is 0: both families
	failed map[plane.Target]plane.Failed
	others counters // of the ports without a series
	reads  uint64

	scraped bool // there was a scrape
}

// NewMeter returns a Meter whose sums are 0.
func NewMeter(opt MeterOptions) *Meter {
	return &Meter{opt: opt, ports: map[route.PortID]*sums{}, failed: map[plane.Target]plane.Failed{}}
}

// Reading are the values that a Meter has read.
type Reading struct {
	Counted plane.Counted                 // the counters of the plane
	Failed  map[plane.Target]plane.Failed // nil if unknown
}

// Read reads the counters for the Services of a Snapshot, and adds the increases since the last Read to the sums.
func (m *Meter) Read(ctx context.Context, routes *route.Snapshot) (Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read(ctx, routes)
}

func (m *Meter) read(ctx context.Context, routes *route.Snapshot) (r Reading, err error) {
	if m.opt.Traffic == nil && m.opt.Failed == nil {
		return r, ErrNotCounted
	}
	if m.opt.Traffic != nil {
		if r.Counted, err = m.opt.Traffic(ctx, routes); err != nil {
			return Reading{}, err
		}
	}
	if m.opt.Failed != nil {
		r.Failed = m.opt.Failed()
	}
	grown := m.grownFailures(r.Failed)
	m.reads++
	for svc := range routes.Services() {
		for i := range svc.Ports {
			m.count(&svc.Ports[i], svc.Ports[i].ID(svc.Name), r.Counted, grown)
		}
	}
	maps.DeleteFunc(m.ports, func(_ route.PortID, s *sums) bool { return s.read != m.reads })
	return r, nil
}

// count adds the increases of a port. Failures count for each port that has the backend, because the port of a failed
// connection is unknown.
func (m *Meter) count(p *route.Port, id route.PortID, all plane.Counted, failed map[plane.Target]plane.Failed) {
	now, counted := all[id]
	s := m.ports[bothFamilies(id)]
	if counted {
		s = m.of(id)
		s.count(id.Family, now.Traffic)
	}
	if len(failed) > 0 {
		for _, b := range Backends(p, now, PortFlows{}) {
			if n, some := failed[plane.Target{Protocol: p.Protocol, Backend: b}]; some {
				s = m.of(id)
				s.total[unanswered] += n.Unanswered
				s.total[refused] += n.Refused
			}
		}
	}
	if s != nil {
		s.read = m.reads
	}
}

// of returns the sums of a port, and creates them if needed.
func (m *Meter) of(id route.PortID) *sums {
	id = bothFamilies(id)
	s := m.ports[id]
	if s == nil {
		s = &sums{}
		m.ports[id] = s
	}
	return s
}

// grownFailures returns the failures since the last Read.
func (m *Meter) grownFailures(now map[plane.Target]plane.Failed) map[plane.Target]plane.Failed {
	grown := map[plane.Target]plane.Failed{}
	for at, n := range now {
		was := m.failed[at]
		n = plane.Failed{Unanswered: since(n.Unanswered, was.Unanswered), Refused: since(n.Refused, was.Refused)}
		if n != (plane.Failed{}) {
			grown[at] = n
		}
	}
	m.failed = now
	return grown
}

// Backends returns the backends of a port, and then former backends with a counter or conntrack entries, each once.
func Backends(p *route.Port, counted plane.PortTraffic, flows PortFlows) []netip.AddrPort {
	local := without(slices.Clone(p.Local), p.Cluster)
	former := slices.AppendSeq(slices.Collect(maps.Keys(counted.Backends)), maps.Keys(flows.Backends))
	former = slices.DeleteFunc(former, func(b netip.AddrPort) bool { return route.FamilyOf(b.Addr()) != p.Family })
	former = without(without(former, p.Cluster), p.Local)
	slices.SortFunc(former, netip.AddrPort.Compare)
	return slices.Concat(p.Cluster, local, slices.Compact(former))
}

// without deletes backends that a pool has, which is sorted.
func without(list, pool []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(list, func(b netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(pool, b, netip.AddrPort.Compare)
		return found
	})
}

// Of returns the sums of a port, of both families, without plane.Live. It returns nil if nothing was counted.
func (m *Meter) Of(id route.PortID) plane.Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.ports[bothFamilies(id)]
	if s == nil {
		return nil
	}
	return m.traffic(s.known, s.total)
}

// Indexes of counters.
const (
	connections = iota
	unanswered
	refused
	failures
	received
	sent
	signals
)

// signalOrder returns the signal for each index of counters.
func signalOrder() [signals]plane.Signal {
	return [signals]plane.Signal{
		plane.Connections, plane.Unanswered, plane.Refusals, plane.Failures, plane.Received, plane.Sent,
	}
}

// counters are the counters of a port. An array takes less memory than a plane.Traffic for tens of thousands of ports.
type counters [signals]uint64

// sums are the sums of a port.
type sums struct {
	known [signals]bool
	was   [2]counters // by family, at the last reading
	total counters
	read  uint64 // number of the last reading with this port

	// For Scrape.
	seen  counters  // total at the last scrape
	begun counters  // total when its series began
	since time.Time // when its series began; zero if it has none
	other bool      // it had no series before this scrape
	load  float64   // connections at the last scrapes, the older ones reduced by decay
}

// count adds the increases since the last reading.
func (s *sums) count(family route.Family, now plane.Traffic) {
	was := &s.was[0]
	if family == route.IPv6 {
		was = &s.was[1]
	}
	for i, signal := range signalOrder() {
		n, known := now[signal]
		if !known {
			continue
		}
		s.known[i] = true
		s.total[i] += since(n, was[i])
		was[i] = n
	}
}

// since returns the increase of a counter. A counter that is lower than before has restarted at 0.
func since(now, was uint64) uint64 {
	if now < was {
		return now
	}
	return now - was
}
