package userspace

import (
	"maps"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// redirect rewrites routes for the rules: each pool of a port has one backend, the socket that
// balances to it. The proxy process is the one that needs the address of the client, for session
// affinity, so there is no source NAT before it.
type redirect struct {
	addrOf func(key) (netip.AddrPort, bool)
	table  route.Table
}

func newRedirect(addrOf func(key) (netip.AddrPort, bool)) *redirect {
	return &redirect{addrOf: addrOf, table: route.Table{Services: map[cluster.Name]*route.Service{}}}
}

// whole rewrites a change that compares everything.
func (r *redirect) whole(c route.Change) route.Change {
	clear(r.table.Services)
	for name, svc := range c.Table.Services {
		r.table.Services[name] = r.service(svc)
	}
	return r.change(c)
}

// change rewrites a change that is about to be written.
func (r *redirect) change(c route.Change) route.Change {
	r.table.Host = c.Table.Host
	for _, t := range c.Touched {
		if svc := c.Table.Services[t.Name]; svc != nil {
			r.table.Services[t.Name] = r.service(svc)
			continue
		}
		delete(r.table.Services, t.Name)
	}
	return r.again(c)
}

// again rewrites the last change again.
func (r *redirect) again(c route.Change) route.Change {
	out := c
	out.Table, out.Touched, out.Underway = &r.table, make([]route.Touch, len(c.Touched)), maps.Clone(c.Underway)
	for i, t := range c.Touched {
		out.Touched[i] = route.Touch{Name: t.Name, Old: r.service(t.Old), New: r.service(t.New)}
	}
	for name, svc := range c.Underway {
		out.Underway[name] = r.service(svc)
	}
	return out
}

// service rewrites a Service.
func (r *redirect) service(svc *route.Service) *route.Service {
	if svc == nil || svc.Ignored != "" {
		return svc
	}
	out := *svc
	out.Ports = make([]route.Port, 0, len(svc.Ports))
	for i := range svc.Ports {
		p := &svc.Ports[i]
		port := route.Port{
			Name: p.Name, Protocol: p.Protocol, Family: p.Family, Frontends: make([]route.Frontend, len(p.Frontends)),
		}
		for i, f := range p.Frontends {
			for _, w := range []*route.Action{&f.Pods, &f.Node, &f.Others} {
				w.Masquerade = false
				switch {
				case w.Verdict != route.Balance:
				case !forwards(p.Protocol) || !r.lead(&port, p.ID(svc.Name), w.Pool):
					*w = route.Action{Verdict: route.Reject}
				}
			}
			port.Frontends[i] = f
		}
		if p.Serving != nil {
			port.Serving = append(append(port.Serving, port.Cluster...), port.Local...)
		}
		out.Ports = append(out.Ports, port)
	}
	return &out
}

// lead makes a pool of a port consist of its socket. It returns false if there is none.
func (r *redirect) lead(port *route.Port, id route.PortID, pool route.Pool) bool {
	to := &port.Cluster
	if pool == route.Local {
		to = &port.Local
	}
	if *to != nil {
		return true
	}
	at, has := r.addrOf(key{port: id, part: socketOf(pool)})
	if has {
		*to = []netip.AddrPort{at}
	}
	return has
}
