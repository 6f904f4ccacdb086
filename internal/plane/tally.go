package plane

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Tally sums up connections that objects of a kernel count, each for a port and a backend. The sums never fall,
// although objects come and go, and begin at 0 again.
type Tally struct {
	last map[string]*seen // by the name of an object
	sums map[route.PortID]*sum
}

// seen is an object as it was read last.
type seen struct {
	n     uint64
	until time.Time
}

// sum has the connections to a port, and those to each backend.
type sum struct {
	all      uint64
	backends map[netip.AddrPort]seen
}

// NewTally returns an empty Tally.
func NewTally() *Tally { return &Tally{last: map[string]*seen{}, sums: map[route.PortID]*sum{}} }

// Grown returns how much an object has counted since it was read last: all, if it is new or counts less than then.
// Until the given time it is the same object, even if it is missing in between.
func (t *Tally) Grown(object string, n uint64, until time.Time) uint64 {
	last := t.last[object]
	if last == nil {
		last = &seen{}
		t.last[object] = last
	}
	before := last.n
	*last = seen{n, until}
	if n < before {
		return n
	}
	return n - before
}

// Add adds connections to a backend of a port, which has an object until the given time at least.
func (t *Tally) Add(id route.PortID, backend netip.AddrPort, n uint64, until time.Time) {
	s := t.sums[id]
	if s == nil {
		s = &sum{backends: map[netip.AddrPort]seen{}}
		t.sums[id] = s
	}
	of := s.backends[backend]
	if until.Before(of.until) {
		until = of.until
	}
	s.all += n
	s.backends[backend] = seen{of.n + n, until}
}

// Forget forgets objects whose time has passed, ports that are gone, and backends that are gone and have no object.
func (t *Tally) Forget(routes *route.Snapshot, now time.Time) {
	for object, last := range t.last {
		if last.until.Before(now) {
			delete(t.last, object)
		}
	}
	for id, s := range t.sums {
		p := portIn(routes.Service(id.Service), id)
		if p == nil {
			delete(t.sums, id)
			continue
		}
		for b, of := range s.backends {
			if of.until.Before(now) && !slices.Contains(p.Cluster, b) && !slices.Contains(p.Local, b) {
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
	i := slices.IndexFunc(svc.Ports, func(p route.Port) bool { return p.ID(svc.Name) == id })
	if i < 0 {
		return nil
	}
	return &svc.Ports[i]
}

// Counted returns the sums.
func (t *Tally) Counted() Counted {
	all := make(Counted, len(t.sums))
	for id, s := range t.sums {
		of := PortTraffic{Traffic{Connections: s.all}, make(map[netip.AddrPort]BackendTraffic, len(s.backends))}
		for b, sum := range s.backends {
			of.Backends[b] = BackendTraffic{Connections: sum.n}
		}
		all[id] = of
	}
	return all
}
