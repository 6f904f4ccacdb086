package userspace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// render returns the entries of a Service.
func (p *Plane) render(svc *route.Service) []entry {
	if svc == nil || svc.Ignored != "" {
		return nil
	}
	var list []entry
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if !forwards(port.Protocol) {
			continue
		}
		id := port.ID(svc.Name)
		if sockets := p.socketsOf(port, id); len(sockets) > 0 {
			list = append(list, entry{Key: key{port: id, part: balancer}, Value: value{target: describe(p.targetOf(port))}})
			list = append(list, sockets...)
		}
	}
	return list
}

// socketsOf returns the sockets of a port.
func (p *Plane) socketsOf(port *route.Port, id route.PortID) []entry {
	list := p.frontends(port, id)
	if p.opt.Own != nil || !p.ports.serve(id.Family) {
		return list
	}
	for _, pool := range p.used(port) {
		k := key{port: id, part: clusterSocket}
		if p.opt.Rules != nil {
			k.part = socketOf(pool)
		}
		list = append(list, entry{Key: k, Value: value{at: p.ports.of(k, p.preferred(port)), pool: pool}})
	}
	return list
}

// used returns the pools of a port that need a socket. With rules these are all to which a client is
// sent; without, clients are on this host, and connect in place of the first frontend.
func (p *Plane) used(port *route.Port) []route.Pool {
	if p.opt.Rules == nil && p.opt.Own == nil {
		i := slices.IndexFunc(port.Frontends, func(f route.Frontend) bool { return f.Node.Verdict == route.Balance })
		if i < 0 {
			return nil
		}
		return []route.Pool{port.Frontends[i].Node.Pool}
	}
	unused := func(pool route.Pool) bool { return !port.Uses(pool) }
	return slices.DeleteFunc([]route.Pool{route.Cluster, route.Local}, unused)
}

// unprivileged is the first port that every user may bind.
const unprivileged = 1024

// preferred returns the port on which clients of this host would look for a port of a Service: the
// same one, or 8080 in place of 80; 0: rules lead to the socket, so any is good.
func (p *Plane) preferred(port *route.Port) uint16 {
	if p.opt.Rules != nil || len(port.Frontends) == 0 {
		return 0
	}
	if n := port.Frontends[0].Port; n >= unprivileged {
		return n
	}
	return 8000 + port.Frontends[0].Port
}

// targetOf returns where the connections of a port go.
func (p *Plane) targetOf(port *route.Port) *relay.Target {
	t := &relay.Target{
		Scheduler: schedulerOf(port), Affinity: port.Affinity, Pools: make([][]relay.Backend, 2),
		ProxyHeader: port.ProxyHeader && port.Protocol == cluster.TCP,
	}
	for _, pool := range []route.Pool{route.Cluster, route.Local} {
		for _, at := range port.Backends(pool) {
			t.Pools[pool] = append(t.Pools[pool], relay.Backend{Addr: at, Weight: port.Weight(at)})
		}
	}
	for _, at := range port.Serving { // a terminating endpoint keeps its flows, and gets no new ones
		if !slices.Contains(port.Cluster, at) && !slices.Contains(port.Local, at) {
			t.Pools[route.Cluster] = append(t.Pools[route.Cluster], relay.Backend{Addr: at})
		}
	}
	return t
}

// schedulerOf returns the scheduler of a port.
func schedulerOf(p *route.Port) relay.Scheduler {
	return [...]relay.Scheduler{
		route.Random: relay.RoundRobin, route.Hash: relay.SourceHash, route.Least: relay.LeastConnections,
	}[p.Method()]
}

// schedulerName returns the name of the scheduler of a port.
func schedulerName(p *route.Port) string { return nameOf(schedulerOf(p)) }

func nameOf(s relay.Scheduler) string { return [...]string{"rr", "lc", "sh"}[s] }

// describe returns a target as text: "rr affinity 3h0m0s cluster 10.0.0.1:80 10.0.0.2:80*3 local 10.0.0.1:80".
func describe(t *relay.Target) string {
	var b strings.Builder
	b.WriteString(nameOf(t.Scheduler))
	if t.Affinity > 0 {
		fmt.Fprintf(&b, " affinity %s", t.Affinity)
	}
	if t.ProxyHeader {
		b.WriteString(" proxy-protocol")
	}
	for i, pool := range t.Pools {
		if len(pool) == 0 {
			continue
		}
		b.WriteString(" " + route.Pool(i).String())
		for _, backend := range pool {
			b.WriteString(" " + backend.Addr.String())
			if backend.Weight != 1 {
				fmt.Fprintf(&b, "*%d", backend.Weight)
			}
		}
	}
	return b.String()
}
