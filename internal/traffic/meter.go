package traffic

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ErrNotCounted is the error of a Meter of a plane that does not count connections.
var ErrNotCounted = errors.New("this mode does not count the connections of Services")

// MeterOptions are where a Meter reads. Each may be nil.
type MeterOptions struct {
	Traffic func(context.Context, *route.Snapshot) (plane.Counted, error) // that of plane.Opened

	// Failed returns how many connections to each backend failed, as a new map. It is for planes whose Traffic does not
	// have that.
	Failed func() map[plane.Target]plane.Failed
}

// Meter adds up what a plane counts. Its sums only grow, although counters in the kernel begin again when an object is
// replaced, and end with their backend. Its methods may be called by several goroutines.
type Meter struct {
	opt MeterOptions

	mu     sync.Mutex
	ports  map[route.PortID]*sums // of both families: the Family of its keys is 0
	failed map[plane.Target]plane.Failed
	others others
	reads  uint64
}

// NewMeter returns a Meter that has counted nothing yet.
func NewMeter(opt MeterOptions) *Meter {
	return &Meter{opt: opt, ports: map[route.PortID]*sums{}, failed: map[plane.Target]plane.Failed{}}
}

// Reading is what a Meter has read.
type Reading struct {
	Counted plane.Counted                 // as the plane has it
	Failed  map[plane.Target]plane.Failed // nil: not known
}

// Read reads the counters, for the Services of a Snapshot. What a plane counted before the first Read is part of the
// sums.
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

// count adds what was counted of a port since the last reading. Failures count for each port that has the backend:
// nobody knows for which one of several a connection was.
func (m *Meter) count(p *route.Port, id route.PortID, all plane.Counted, failed map[plane.Target]plane.Failed) {
	now, counted := all[id]
	s := m.ports[bothFamilies(id)]
	if s == nil && counted {
		s = m.of(id)
	}
	if counted {
		s.count(id.Family, now.Traffic)
	}
	if len(failed) > 0 {
		for b := range Backends(p, now, PortFlows{}) {
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

// of returns the sums of a port.
func (m *Meter) of(id route.PortID) *sums {
	id = bothFamilies(id)
	s := m.ports[id]
	if s == nil {
		s = &sums{}
		m.ports[id] = s
	}
	return s
}

// grownFailures returns the failures since the last reading.
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

// Backends yields the backends of a port, and then former ones that are still counted or have entries, each once.
func Backends(p *route.Port, counted plane.PortTraffic, flows PortFlows) iter.Seq[netip.AddrPort] {
	has := func(pool []netip.AddrPort, b netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(pool, b, netip.AddrPort.Compare)
		return found
	}
	return func(yield func(netip.AddrPort) bool) {
		for _, b := range p.Cluster {
			if !yield(b) {
				return
			}
		}
		for _, b := range p.Local {
			if !has(p.Cluster, b) && !yield(b) {
				return
			}
		}
		for b := range former(counted, flows) {
			if route.FamilyOf(b.Addr()) == p.Family && !has(p.Cluster, b) && !has(p.Local, b) && !yield(b) {
				return
			}
		}
	}
}

// former yields what is counted or has entries, each once.
func former(counted plane.PortTraffic, flows PortFlows) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for b := range counted.Backends {
			if !yield(b) {
				return
			}
		}
		for b := range flows.Backends {
			if _, both := counted.Backends[b]; !both && !yield(b) {
				return
			}
		}
	}
}

// Of returns the sums of a port, of both families; nil: nothing was counted. It has no Live.
func (m *Meter) Of(id route.PortID) plane.Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.ports[bothFamilies(id)]
	if s == nil {
		return nil
	}
	return m.signals(s.known, s.total)
}

// Places of counters in numbers.
const (
	connections = iota
	unanswered
	refused
	failures
	received
	sent
	places
)

// counters are the signals in numbers.
func counters() [places]plane.Signal {
	return [places]plane.Signal{
		plane.Connections, plane.Unanswered, plane.Refusals, plane.Failures, plane.Received, plane.Sent,
	}
}

// numbers are counters without those that are not known: there are ten thousands of them.
type numbers [places]uint64

// sums are what is known of a port.
type sums struct {
	known [places]bool
	was   [2]numbers // of each family, when the plane was read the last time
	total numbers
	read  uint64 // the last reading with this port

	// For the metrics: see busiest.go.
	seen  numbers   // total at the last scrape
	begun numbers   // total when its series began
	since time.Time // when its series began; zero: it is one of the others
	other bool      // it was one of the others before this scrape
	load  float64   // how many connections it had at the last scrapes
}

// count adds what was counted since the last reading.
func (s *sums) count(family route.Family, now plane.Traffic) {
	was := &s.was[0]
	if family == route.IPv6 {
		was = &s.was[1]
	}
	for i, signal := range counters() {
		n, known := now[signal]
		if !known {
			continue
		}
		s.known[i] = true
		s.total[i] += since(n, was[i])
		was[i] = n
	}
}

// since returns how much a counter has grown. One that is less than before began again.
func since(now, was uint64) uint64 {
	if now < was {
		return now
	}
	return now - was
}
