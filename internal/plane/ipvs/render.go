package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
)

// renderer renders one Service. It collects the entries of all families.
type renderer struct {
	host    *route.Host
	marks   *marks
	entries []entry
	known   map[key]bool // entries of the current port that Services share
}

// render returns the entries of a Service; nil if svc is nil.
func render(svc *route.Service, host *route.Host, marks *marks) []entry {
	if svc == nil {
		return nil
	}
	r := renderer{host: host, marks: marks}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		r.known = map[key]bool{}
		r.port(p.ID(svc.Name), p)
		if svc.Health != nil {
			r.once(key{class: member, family: p.Family, name: healthPorts, member: ipset.Member{Port: svc.Health.Port}})
		}
	}
	return r.entries
}

// once adds an entry that Services share. A port adds it once, however often it needs it: the ledger counts the ports.
func (r *renderer) once(k key) {
	if !r.known[k] {
		r.known[k] = true
		r.entries = append(r.entries, entry{Key: k})
	}
}

func (r *renderer) add(k key, v value) { r.entries = append(r.entries, entry{Key: k, Value: v}) }

// port adds the virtual servers of a port, and the members of sets for its frontends.
func (r *renderer) port(id route.PortID, p *route.Port) {
	cut := uint32(0) // the mark of pods and this node, if some frontend needs it
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if cut == 0 && divided(p, f) {
			cut = r.marks.mark(id)
			r.server(p, ipvs.Server{Addr: p.Family.Unspecified(), Mark: cut}, p.Backends(f.Node.Pool))
		}
		for _, to := range addresses(r.host, p, f) {
			r.frontend(p, f, to, cut)
		}
		if f.Kind == route.NodePort && p.Protocol != cluster.SCTP && f.Node.Verdict != route.Drop {
			r.nodePort(p, f, ipset.Member{Port: f.Port})
		}
	}
	for _, pool := range [][]netip.AddrPort{p.Cluster, p.Local} {
		for _, b := range pool {
			if slices.Contains(p.Here, b.Addr()) {
				m := ipset.Member{
					Addr: b.Addr(), Protocol: uint8(p.Protocol), Port: b.Port(), To: netip.PrefixFrom(b.Addr(), b.Addr().BitLen()),
				}
				r.once(key{class: member, family: p.Family, name: loopBack, member: m})
			}
		}
	}
}

// divided reports whether pods and this node have other backends than other clients.
func divided(p *route.Port, f *route.Frontend) bool {
	return f.Others.Verdict == route.Balance && f.Node.Verdict == route.Balance &&
		!slices.Equal(p.Backends(f.Node.Pool), p.Backends(f.Others.Pool))
}

// addresses returns the addresses of a frontend: its own, or those that serve NodePorts.
func addresses(host *route.Host, p *route.Port, f *route.Frontend) []netip.Addr {
	if f.Kind == route.NodePort {
		return nodeAddrs(host, p.Family)
	}
	return []netip.Addr{f.Addr}
}

// frontend adds everything about one address of a frontend. cut is the mark of the port; 0: none.
func (r *renderer) frontend(p *route.Port, f *route.Frontend, to netip.Addr, cut uint32) {
	m := ipset.Member{Addr: to, Protocol: uint8(p.Protocol), Port: f.Port}
	in := func(name string) { r.add(key{class: member, family: p.Family, name: name, member: m}, value{}) }
	if f.Kind != route.NodePort && !slices.Contains(r.host.Local, to) {
		r.once(key{class: address, at: netip.AddrPortFrom(to, 0)})
		r.once(key{class: member, family: p.Family, name: boundIPs, member: ipset.Member{Addr: to}})
	}
	if f.Restricted {
		in(firewalled)
		for _, allowed := range f.Allow {
			from := m
			from.To = allowed
			r.add(key{class: member, family: p.Family, name: sourceCIDR, member: from}, value{})
		}
	}
	if f.Node.Verdict == route.Drop { // of all clients
		in(dropped)
		return
	}
	way := f.Others
	if way.Verdict == route.Drop {
		in(notLocal)
		way = f.Node
	}
	var backends []netip.AddrPort
	if way.Verdict == route.Balance {
		backends = p.Backends(way.Pool)
	}
	r.server(p, ipvs.Server{Addr: to, Protocol: m.Protocol, Port: f.Port}, backends)
	if divided(p, f) {
		r.add(key{class: member, family: p.Family, name: circuits, member: m}, value{mark: cut})
	}
	switch f.Kind {
	case route.ClusterIP:
		in(clusterIPs)
	case route.ExternalIP:
		if masqueraded(f) {
			in(externalIPs)
		} else {
			in(externalLocal)
		}
	case route.LoadBalancer:
		in(loadBalancers)
		if !masqueraded(f) {
			in(balancerLocal)
		}
	default:
		if p.Protocol == cluster.SCTP {
			r.nodePort(p, f, m)
		}
	}
}

// nodePort adds a NodePort to the sets that decide on source NAT.
func (r *renderer) nodePort(p *route.Port, f *route.Frontend, m ipset.Member) {
	all, local := nodePortSets(p.Protocol.String())
	r.add(key{class: member, family: p.Family, name: all, member: m}, value{})
	if !masqueraded(f) {
		r.add(key{class: member, family: p.Family, name: local, member: m}, value{})
	}
}

// masqueraded reports whether all clients of an external frontend get source NAT. If not, this node alone does.
func masqueraded(f *route.Frontend) bool {
	return f.Others.Verdict == route.Balance && f.Others.Masquerade
}

// schedulerOf returns the scheduler of a port. If backends have weights, it is one that goes by them. Names that only
// other planes have become those of IPVS.
func schedulerOf(p *route.Port) string {
	s := cmp.Or(p.Scheduler, defaultScheduler)
	switch {
	case s == "maglev":
		return "mh"
	case s == "p2c":
		return "wlc"
	case len(p.Weights) > 0 && (s == "rr" || s == "lc"):
		return "w" + s
	}
	return s
}

// server adds a virtual server. Without destinations it refuses connections.
func (r *renderer) server(p *route.Port, s ipvs.Server, backends []netip.AddrPort) {
	scheduler := schedulerOf(p)
	r.add(key{class: server, server: s}, value{settings: ipvs.Settings{
		Scheduler: scheduler, Ports: p.Scheduler == "mh", // as kube-proxy does
		Affinity: (p.Affinity + time.Second - 1).Truncate(time.Second),
	}})
	for _, b := range backends {
		r.add(key{class: destination, server: s, at: b}, value{weight: uint32(p.Weight(b))})
	}
	for _, b := range p.Serving {
		if _, chosen := slices.BinarySearchFunc(backends, b, netip.AddrPort.Compare); !chosen {
			r.add(key{class: destination, server: s, at: b}, value{}) // established flows to it continue
		}
	}
}
