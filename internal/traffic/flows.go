// Package traffic measures the Services of this node: their new, live and failed connections, and the clients and
// Services with the most conntrack entries.
package traffic

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Listing is a summary of the conntrack table. It does not change.
type Listing struct {
	At   time.Time     // when the listing began
	Took time.Duration // to list and count the entries

	Entries   uint64 // number of listed entries
	Held      uint64 // number of entries according to the kernel
	Limit     uint64 // maximum number of entries; 0 if there is no limit or it is unknown
	Accounted bool   // conntrack counts bytes

	// Ports has the flows to Services. The Family of its keys is 0, because it sums up both families.
	Ports map[route.PortID]PortFlows

	// Clients are the clients with the most entries, sorted. Each may have up to Slack more entries than listed.
	Clients []Client
	Slack   uint64
}

// Flows are the entries of a port or of a backend.
type Flows struct {
	Entries uint64 // including entries of closed and unanswered connections
	Live    uint64 // open connections, and UDP flows

	Sent, Received uint64 // bytes from and to clients, if the Listing is Accounted
}

// PortFlows are the flows to a port of a Service, in total and by backend, including former backends.
type PortFlows struct {
	Flows

	Backends map[netip.AddrPort]Flows
}

// Client is an address that opened flows, to any destination.
type Client struct {
	Addr          netip.Addr
	Entries, Live uint64
	Service       cluster.Name // the Service with most of the entries; empty if there is none
}

// Share returns the part of the table that the entries are, from 0 to 1.
func (l *Listing) Share(entries uint64) float64 {
	if l.Entries == 0 {
		return 0
	}
	return float64(entries) / float64(l.Entries)
}

// Heaviest returns the Service with the most entries. entries is 0 if there is none.
func (l *Listing) Heaviest() (name cluster.Name, entries uint64) {
	all := map[cluster.Name]uint64{}
	for id, flows := range l.Ports {
		all[id.Service] += flows.Entries
	}
	for service, n := range all {
		if n > entries || n == entries && service.Compare(name) < 0 {
			name, entries = service, n
		}
	}
	return name, entries
}

// flows counts entries. Its memory is bounded by the number of Services and backends, and by maxClients.
type flows struct {
	tracking plane.Tracking
	ids      []route.PortID
	fronts   map[route.Key]int32    // indexes of ids
	backends map[plane.Target]int32 // indexes of ids; nil if all connections have a frontend as their destination
	ports    map[int32]*PortFlows   // by index of ids
	clients  heavy
	entries  uint64
	bytes    bool
}

// newFlows returns flows for the Services of a Snapshot.
func newFlows(routes *route.Snapshot, tracking plane.Tracking) *flows {
	f := &flows{
		tracking: tracking, fronts: map[route.Key]int32{}, ports: map[int32]*PortFlows{}, clients: newHeavy(maxClients),
	}
	if tracking == plane.Untranslated || tracking == plane.Relayed {
		f.backends = map[plane.Target]int32{}
	}
	known := map[route.PortID]int32{} // of one Service
	for svc := range routes.Services() {
		clear(known)
		for i := range svc.Ports {
			id := bothFamilies(svc.Ports[i].ID(svc.Name))
			at, both := known[id]
			if !both {
				at, known[id] = int32(len(f.ids)), int32(len(f.ids))
				f.ids = append(f.ids, id)
			}
			f.index(&svc.Ports[i], at)
		}
	}
	return f
}

func (f *flows) index(p *route.Port, at int32) {
	for i := range p.Frontends {
		f.fronts[p.Key(&p.Frontends[i])] = at
	}
	if f.backends == nil {
		return
	}
	for _, pool := range [][]netip.AddrPort{p.Cluster, p.Local} {
		for _, b := range pool {
			target := plane.Target{Protocol: p.Protocol, Backend: b}
			if _, known := f.backends[target]; !known {
				f.backends[target] = at
			}
		}
	}
}

// bothFamilies returns the ID without the family.
func bothFamilies(id route.PortID) route.PortID {
	id.Family = 0
	return id
}

// noPort is the index of entries without a Service port.
const noPort int32 = -1

// add counts an entry.
func (f *flows) add(e conntrack.Entry) {
	f.entries++
	f.bytes = f.bytes || e.Accounted
	one := Flows{Entries: 1, Sent: e.Sent, Received: e.Received}
	live := !e.Closing() && !e.Opening()
	if live {
		one.Live = 1
	}
	at, backend := f.find(e)
	f.clients.add(e.OrigSrc.Addr(), at, live)
	if at == noPort {
		return
	}
	of := f.ports[at]
	if of == nil {
		of = &PortFlows{Backends: map[netip.AddrPort]Flows{}}
		f.ports[at] = of
	}
	of.Flows = of.plus(one)
	if backend {
		of.Backends[e.ReplySrc] = of.Backends[e.ReplySrc].plus(one)
	}
}

func (f Flows) plus(o Flows) Flows {
	return Flows{f.Entries + o.Entries, f.Live + o.Live, f.Sent + o.Sent, f.Received + o.Received}
}

// find returns the port of a connection, and whether the source of answers is one of its backends. A connection whose
// destination is a backend counts for the first Service, by name, that has the backend: conntrack does not have the
// Service.
func (f *flows) find(e conntrack.Entry) (port int32, backend bool) {
	protocol := cluster.Protocol(e.Protocol)
	if e.Translated() || e.ReplySrc != e.OrigDst {
		if at, known := route.Find(f.fronts, protocol, e.OrigDst); known {
			return at, f.tracking != plane.Relayed
		}
		return noPort, false
	}
	if at, known := f.backends[plane.Target{Protocol: protocol, Backend: e.ReplySrc}]; known {
		return at, true
	}
	return noPort, false
}

// listing returns the counts as a Listing.
func (f *flows) listing() *Listing {
	l := &Listing{Entries: f.entries, Accounted: f.bytes, Ports: map[route.PortID]PortFlows{}}
	for at, flows := range f.ports {
		l.Ports[f.ids[at]] = *flows
	}
	for addr, c := range f.clients.all {
		client := Client{Addr: addr, Entries: uint64(c.entries), Live: uint64(min(c.live, c.entries))}
		if top := c.top(); top != noPort {
			client.Service = f.ids[top].Service
		}
		l.Clients = append(l.Clients, client)
	}
	slices.SortFunc(l.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), a.Addr.Compare(b.Addr))
	})
	l.Clients = slices.Clone(l.Clients[:min(len(l.Clients), listedClients)])
	l.Slack = f.clients.lost
	return l
}
