// Package sizes counts the programmed Services, frontends and backends as they change,
// so that a question need not count all of them.
package sizes

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Sizes are the totals of the programmed Services.
type Sizes struct {
	Services      int // programmed ones
	NotProgrammed int // ignored, or without any address of their own
	Ports         int // per family
	Frontends     int // addresses, ports and protocols that clients use
	Backends      int // distinct ones of each Service, summed up

	noLocal [2][2]int // by policy, then family
}

// Policy is a traffic policy that may exclude endpoints on other nodes.
type Policy int

// The policies.
const (
	Internal Policy = iota // internalTrafficPolicy Local
	External               // externalTrafficPolicy Local
)

// NoLocal returns how many ports of a family have no usable endpoint because of a
// policy, as all are on other nodes.
func (s Sizes) NoLocal(p Policy, f route.Family) int { return s.noLocal[p][familyIndex(f)] }

func (s Sizes) plus(t Sizes, sign int) Sizes {
	s.Services += sign * t.Services
	s.NotProgrammed += sign * t.NotProgrammed
	s.Ports += sign * t.Ports
	s.Frontends += sign * t.Frontends
	s.Backends += sign * t.Backends
	for policy := range s.noLocal {
		for family := range s.noLocal[policy] {
			s.noLocal[policy][family] += sign * t.noLocal[policy][family]
		}
	}
	return s
}

// Follower counts. It is safe for concurrent use.
type Follower struct {
	mu  sync.Mutex
	sum Sizes
	buf []backend // used by the goroutine of Applied
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
	var more Sizes
	for _, t := range c.Touched {
		more = more.plus(f.of(t.Old), -1).plus(f.of(t.New), +1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sum = f.sum.plus(more, +1)
}

// backend identifies a backend: the same address and port over TCP and UDP are two.
type backend struct {
	protocol cluster.Protocol
	addr     netip.AddrPort
}

func (b backend) compare(c backend) int {
	if b.protocol != c.protocol {
		return int(b.protocol) - int(c.protocol)
	}
	return b.addr.Compare(c.addr)
}

// of counts one Service.
func (f *Follower) of(svc *route.Service) Sizes {
	switch {
	case svc == nil:
		return Sizes{}
	case len(svc.Ports) == 0:
		return Sizes{NotProgrammed: 1}
	}
	out := Sizes{Services: 1, Ports: len(svc.Ports)}
	f.buf = f.buf[:0]
	for i := range svc.Ports {
		p := &svc.Ports[i]
		out.Frontends += len(p.Frontends)
		for _, pool := range [...][]netip.AddrPort{p.Cluster, p.Local} {
			for _, addr := range pool {
				f.buf = append(f.buf, backend{p.Protocol, addr})
			}
		}
		for policy, without := range noLocal(p) {
			if without {
				out.noLocal[policy][familyIndex(p.Family)]++
			}
		}
	}
	slices.SortFunc(f.buf, backend.compare)
	out.Backends = len(slices.Compact(f.buf))
	return out
}

// noLocal reports for each policy whether it leaves the port without usable endpoints,
// as all are on other nodes. Only then does a route drop.
func noLocal(p *route.Port) [2]bool {
	var without [2]bool
	for _, f := range p.Frontends {
		if f.Others.Verdict != route.Drop {
			continue
		}
		policy := External
		if f.Kind == route.ClusterIP {
			policy = Internal
		}
		without[policy] = true
	}
	return without
}

func familyIndex(f route.Family) int {
	if f == route.IPv6 {
		return 1
	}
	return 0
}
