package plane

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Tally sums up connections that objects of a kernel count, each for a backend of a port. The sums never fall, although
// objects come and go, and begin at 0 again.
type Tally struct {
	routes  *route.Snapshot // of the last Read
	changes int             // of routes
	objects map[Object]*object
	sums    map[route.PortID]*sum
}

// object is an object as it was read last.
type object struct {
	n     uint64
	until time.Time
	found int            // the changes of routes when its endpoint was found; -1: never
	at    netip.AddrPort // the backend that it counts for
	port  *sum           // nil: it counts for no port of a Service
	to    *backend       // of the port
}

// sum has the connections to a port, and those to each backend.
type sum struct {
	all      uint64
	backends map[netip.AddrPort]*backend
}

// backend has the connections to a backend, which has an object until the given time at least.
type backend struct {
	n     uint64
	until time.Time
}

// NewTally returns an empty Tally.
func NewTally() *Tally { return &Tally{objects: map[Object]*object{}, sums: map[route.PortID]*sum{}} }

// Reading is what an object counts. Until the given time it is the same object, even if it is missing in between.
type Reading struct {
	Object Object
	N      uint64
	Until  time.Time
}

// Object is the name of an object, and what it is part of.
type Object struct{ In, Name string }

// Endpoint is a backend of a port.
type Endpoint struct {
	Port    route.PortID
	Backend netip.AddrPort
}

// Read begins to read objects, whose endpoints are those in routes.
func (t *Tally) Read(routes *route.Snapshot) {
	if t.routes != routes {
		t.routes, t.changes = routes, t.changes+1
	}
}

// Add adds what an object has counted since its last Reading: all, if it is new or counts less than then. find returns
// its endpoint, if it is one of a Service, and gets the Backend of the object. It is called again after routes have
// changed, and after Move.
func (t *Tally) Add(r Reading, find func(last netip.AddrPort) (Endpoint, bool)) {
	o := t.objects[r.Object]
	if o == nil {
		o = &object{found: -1}
		t.objects[r.Object] = o
	}
	grown := r.N
	if o.n <= r.N {
		grown -= o.n
	}
	o.n, o.until = r.N, r.Until
	if grown > 0 && o.found != t.changes {
		o.found, o.port, o.to = t.changes, nil, nil
		if at, known := find(o.at); known {
			o.port, o.to = t.sumOf(at)
			o.at = at.Backend
		}
	}
	if o.port != nil {
		o.port.all += grown
		o.to.n += grown
		if o.to.until.Before(r.Until) {
			o.to.until = r.Until
		}
	}
}

// Backend returns the backend for which an object counts; an invalid one if none was found since Move.
func (t *Tally) Backend(o Object) netip.AddrPort {
	if known := t.objects[o]; known != nil {
		return known.at
	}
	return netip.AddrPort{}
}

// Move makes an object count for another endpoint from now on.
func (t *Tally) Move(object Object) {
	if o := t.objects[object]; o != nil {
		o.found, o.at, o.port, o.to = -1, netip.AddrPort{}, nil, nil
	}
}

// MoveAll is Move for all objects.
func (t *Tally) MoveAll() {
	for name := range t.objects {
		t.Move(name)
	}
}

// sumOf returns the sums for an endpoint.
func (t *Tally) sumOf(at Endpoint) (*sum, *backend) {
	s := t.sums[at.Port]
	if s == nil {
		s = &sum{backends: map[netip.AddrPort]*backend{}}
		t.sums[at.Port] = s
	}
	if s.backends[at.Backend] == nil {
		s.backends[at.Backend] = &backend{}
	}
	return s, s.backends[at.Backend]
}

// Forget forgets objects whose time has passed, ports that are gone, and backends that are gone and have no object.
func (t *Tally) Forget(now time.Time) {
	for name, o := range t.objects {
		if o.until.Before(now) {
			delete(t.objects, name)
		}
	}
	for id, s := range t.sums {
		p := portIn(t.routes.Service(id.Service), id)
		if p == nil {
			delete(t.sums, id)
			continue
		}
		for addr, b := range s.backends {
			if b.until.Before(now) && !slices.Contains(p.Cluster, addr) && !slices.Contains(p.Local, addr) {
				delete(s.backends, addr)
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
		for addr, b := range s.backends {
			of.Backends[addr] = BackendTraffic{Connections: b.n}
		}
		all[id] = of
	}
	return all
}
