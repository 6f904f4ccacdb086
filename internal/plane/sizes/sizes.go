// Package sizes counts the programmed Services, frontends and backends as they change,
// so that a question need not count all of them.
package sizes

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Sizes are the totals of the programmed Services.
type Sizes struct {
	Services      int `json:"services"`      // programmed ones
	Ports         int `json:"ports"`         // per family
	Frontends     int `json:"frontends"`     // addresses, ports and protocols that clients use
	Backends      int `json:"backends"`      // distinct ones of each Service, summed up
	NotProgrammed int `json:"notProgrammed"` // ignored, or without any address of their own
	NoBackends    int `json:"noBackends"`    // programmed Services without any usable endpoint

	// Hashed are the ports whose backends a hash of the client chooses, and Tables a checksum of their tables with
	// endpoints of all nodes.
	Hashed int            `json:"hashTables"`
	Tables slots.Checksum `json:"hashTablesChecksum"`

	noLocal [2][route.IPv6 + 1]int // by policy, then family
}

// Policy is a traffic policy that may exclude endpoints on other nodes.
type Policy int

// The policies.
const (
	Internal Policy = iota // internalTrafficPolicy Local
	External               // externalTrafficPolicy Local
)

// NoLocal returns how many ports of a family have no usable endpoint because of a policy, as all are on other nodes.
func (s Sizes) NoLocal(p Policy, f route.Family) int { return s.noLocal[p][f] }

// Follower counts. It is safe for concurrent use.
type Follower struct {
	Hashed bool // the plane has the tables of package slots; set before the first change

	mu  sync.Mutex
	sum Sizes
	buf []backend
}

// New returns a Follower that has counted nothing.
func New() *Follower { return &Follower{} }

// Sizes returns the totals after the last successful write.
func (f *Follower) Sizes() Sizes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sum
}

// Applied implements proxy.Follower. Its cost follows the change.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range c.Touched {
		f.count(t.Old, -1)
		f.count(t.New, +1)
	}
}

// backend identifies a backend: the same address and port over TCP and UDP are two.
type backend struct {
	protocol cluster.Protocol
	addr     netip.AddrPort
}

func (b backend) compare(c backend) int {
	return cmp.Or(cmp.Compare(b.protocol, c.protocol), b.addr.Compare(c.addr))
}

// count adds a Service to the totals, or subtracts it from them.
func (f *Follower) count(svc *route.Service, sign int) {
	switch {
	case svc == nil:
		return
	case len(svc.Ports) == 0:
		f.sum.NotProgrammed += sign
		return
	}
	f.sum.Services += sign
	f.sum.Ports += sign * len(svc.Ports)
	f.buf = f.buf[:0]
	for i := range svc.Ports {
		p := &svc.Ports[i]
		f.sum.Frontends += sign * len(p.Frontends)
		for _, pool := range [...][]netip.AddrPort{p.Cluster, p.Local} {
			for _, addr := range pool {
				f.buf = append(f.buf, backend{p.Protocol, addr})
			}
		}
		if f.Hashed && p.ByClient() {
			f.sum.Hashed += sign
			f.sum.Tables.Add(p.ID(svc.Name).String(), p.Cluster, p.Weight)
		}
		for _, policy := range []Policy{Internal, External} {
			if noLocal(p, policy) {
				f.sum.noLocal[policy][p.Family] += sign
			}
		}
	}
	if len(f.buf) == 0 {
		f.sum.NoBackends += sign
	}
	slices.SortFunc(f.buf, backend.compare)
	f.sum.Backends += sign * len(slices.Compact(f.buf))
}

// noLocal reports whether a policy leaves the port without usable endpoints, as all are on other nodes: only then a
// route drops.
func noLocal(p *route.Port, policy Policy) bool {
	return slices.ContainsFunc(p.Frontends, func(f route.Frontend) bool {
		return f.Others.Verdict == route.Drop && (f.Kind == route.ClusterIP) == (policy == Internal)
	})
}
