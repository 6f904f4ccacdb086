// Package shadowed reports sockets of this node that Services shadow: a NodePort, an external IP or a load balancer IP
// of the node takes connections that programs of the node listen for, such as kubelet on port 10250.
//
// The Service wins, as with kube-proxy. Otherwise any process that may listen on
// the host's network could take a port away from a Service.
package shadowed

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	// scanPeriod is the time between two scans if no Service changes.
	scanPeriod = time.Minute
	// confirmPeriod is the time from the scan that finds a shadowed socket to the scan
	// that confirms it: sockets of clients are soon closed.
	confirmPeriod = 2 * time.Second
)

// Options for New. All are needed.
type Options struct {
	Listeners func(context.Context) ([]sockdiag.Listener, error)
	Local     func(context.Context) ([]netip.Addr, error) // addresses of this node
	Report    func([]route.Problem)                       // gets each problem once until it is over
	Failed    func(error)                                 // gets each failure once until it is over
}

// Follower is a proxy.Follower. Its methods may be called from several goroutines.
type Follower struct {
	*work.Loop

	opt Options

	mu        sync.Mutex
	host      route.Host
	frontends map[key]map[frontend]bool

	seen map[route.Problem]int // in how many scans one after the other; used by Run only
}

// key is the common part of a socket and a frontend.
type key struct {
	protocol cluster.Protocol
	port     uint16
}

// frontend is a frontend of a Service. Values it leads to never change.
type frontend struct {
	service cluster.Name
	kind    route.FrontendKind
	addr    netip.Addr
	port    *route.Port
}

// New returns a Follower that knows no Services.
func New(o Options) *Follower {
	f := &Follower{opt: o, frontends: map[key]map[frontend]bool{}}
	f.Loop = work.New(f.scan, o.Failed)
	return f
}

// Applied adds and removes the frontends of changed Services. It implements proxy.Follower.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := c.OldHost != nil
	f.host = c.Table.Host
	for _, t := range c.Touched {
		each(t.Old, f.remove)
	}
	for _, t := range c.Touched {
		each(t.New, func(k key, x frontend) {
			changed = true
			f.add(k, x)
		})
	}
	if changed {
		f.Wake()
	}
}

// each visits the frontends that may hide a socket. A ClusterIP that is an address of
// the node is reported by package route.
func each(svc *route.Service, visit func(key, frontend)) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Frontends {
			if x := &p.Frontends[j]; x.Kind != route.ClusterIP {
				visit(key{p.Protocol, x.Port}, frontend{svc.Name, x.Kind, x.Addr, p})
			}
		}
	}
}

func (f *Follower) add(k key, x frontend) {
	if f.frontends[k] == nil {
		f.frontends[k] = map[frontend]bool{}
	}
	f.frontends[k][x] = true
}

func (f *Follower) remove(k key, x frontend) {
	delete(f.frontends[k], x)
	if len(f.frontends[k]) == 0 {
		delete(f.frontends, k)
	}
}

// scan reports the sockets that are shadowed in this scan and in the one before. It
// returns the time until the next scan, which may have to confirm one.
func (f *Follower) scan(ctx context.Context) (next time.Duration, err error) {
	found, err := f.find(ctx)
	if err != nil {
		return 0, err
	}
	next = scanPeriod
	var confirmed []route.Problem
	for p := range found {
		found[p] += f.seen[p]
		switch found[p] {
		case 1:
			next = confirmPeriod
		case 2:
			confirmed = append(confirmed, p)
		}
	}
	f.seen = found
	if len(confirmed) > 0 {
		slices.SortFunc(confirmed, func(a, b route.Problem) int { return cmp.Compare(a.String(), b.String()) })
		f.opt.Report(confirmed)
	}
	return next, nil
}

// find returns the sockets that are shadowed now, each with 1.
func (f *Follower) find(ctx context.Context) (map[route.Problem]int, error) {
	listeners, err := f.opt.Listeners(ctx)
	if err != nil {
		return nil, err
	}
	local, err := f.opt.Local(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[route.Problem]int{}
	for _, l := range listeners {
		for x := range maps.Keys(f.frontends[key{cluster.Protocol(l.Protocol), l.At.Port()}]) {
			if x.hides(l.At, f.host.NodePorts, local) && !x.leadsTo(l.At, local) {
				found[x.problem(l)] = 1
			}
		}
	}
	return found, nil
}

// hides reports whether a frontend takes connections that a socket listens for.
func (x frontend) hides(at netip.AddrPort, ports route.NodePorts, local []netip.Addr) bool {
	addr := at.Addr()
	switch {
	case x.kind != route.NodePort:
		return slices.Contains(local, x.addr) && (addr == x.addr || covers(addr, x.port.Family))
	case addr.IsUnspecified():
		return covers(addr, x.port.Family) && ports.ServeAny(x.port.Family)
	}
	return route.FamilyOf(addr) == x.port.Family && ports.Serve(addr)
}

// covers reports whether an address stands for all addresses of a family.
func covers(a netip.Addr, f route.Family) bool {
	return a == netip.IPv6Unspecified() || a == netip.IPv4Unspecified() && f == route.IPv4
}

// leadsTo reports whether the socket is an endpoint of the frontend: it is not shadowed then.
func (x frontend) leadsTo(at netip.AddrPort, local []netip.Addr) bool {
	is := func(backend netip.AddrPort) bool {
		return backend.Port() == at.Port() &&
			(backend.Addr() == at.Addr() || at.Addr().IsUnspecified() && slices.Contains(local, backend.Addr()))
	}
	return slices.ContainsFunc(x.port.Cluster, is) || slices.ContainsFunc(x.port.Local, is)
}

func (x frontend) problem(l sockdiag.Listener) route.Problem {
	f := route.Frontend{Kind: x.kind, Addr: x.addr, Port: l.At.Port()}
	return f.Problem(x.service, x.port.Protocol, fmt.Sprintf("hides a socket of this node that listens on %s and belongs "+
		"to user %d: the Service gets its connections; use another port", l.At, l.UID))
}
