package kernelspace

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Load bounds the contents of one write.
func Load() plane.Load {
	return plane.Load{Piece: 1000, Cost: func(p *route.Port) int { return 2*len(p.Frontends) + max(len(p.Cluster), len(p.Local)) }}
}

// renderer renders one Service.
type renderer struct {
	*Plane
	host    *route.Host
	entries []entry
}

// render returns the entries of a Service; none of one that does not exist. It depends on nothing
// but the arguments, the options, and what Refresh read about the host.
func (p *Plane) render(svc *route.Service, host *route.Host) []entry {
	if svc == nil || p.writer.state == nil {
		return nil
	}
	r := renderer{Plane: p, host: host}
	for i := range svc.Ports {
		r.port(&svc.Ports[i])
	}
	return r.entries
}

func (r *renderer) port(p *route.Port) {
	protocol := protocolOf(p.Protocol)
	if protocol == 0 || p.Family == route.IPv6 && !r.writer.state.features.DualStack {
		return
	}
	needed := map[netip.Addr]bool{}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		way := f.Others
		if f.Kind == route.ClusterIP {
			way = f.Pods
		}
		if way.Verdict != route.Balance {
			continue // HNS neither refuses nor drops
		}
		for _, addr := range r.addresses(f, p.Family) {
			k := key{class: frontend, addr: addr, family: p.Family, protocol: protocol, port: f.Port}
			v := value{flags: r.flags(p, f, way), source: r.source(p.Family)}
			for _, b := range r.balancers(k, v, p.Backends(way.Pool)) {
				needed[b.Addr()] = true
			}
		}
	}
	for a := range needed {
		if !slices.Contains(p.Here, a) {
			r.entries = append(r.entries, entry{Key: key{class: remote, addr: a}})
		}
	}
}

// balancers adds a load balancer for each port that backends have. It returns the backends.
func (r *renderer) balancers(k key, v value, backends []netip.AddrPort) (used []netip.AddrPort) {
	groups := byPort(backends)
	if r.single {
		groups = groups[:min(1, len(groups))]
	}
	for i, g := range groups {
		v.target, v.endpoints = g[0].Port(), join(g)
		if i > 0 {
			k.target = v.target
		}
		r.entries = append(r.entries, entry{Key: k, Value: v})
		used = append(used, g...)
	}
	return used
}

// byPort divides backends by their port, the largest group first.
func byPort(backends []netip.AddrPort) [][]netip.AddrPort {
	var groups [][]netip.AddrPort
	for _, b := range backends {
		i := slices.IndexFunc(groups, func(g []netip.AddrPort) bool { return g[0].Port() == b.Port() })
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], b)
	}
	slices.SortFunc(groups, func(a, b []netip.AddrPort) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0].Port(), b[0].Port()))
	})
	return groups
}

// join returns the addresses of backends as they are in a value.
func join(backends []netip.AddrPort) string {
	list := make([]string, len(backends))
	for i, b := range backends {
		list[i] = b.Addr().String()
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// addresses returns the addresses of a frontend: an invalid one for all of this host.
func (r *renderer) addresses(f *route.Frontend, family route.Family) []netip.Addr {
	if f.Kind != route.NodePort {
		return []netip.Addr{f.Addr}
	}
	if r.host.NodePorts.All(family) {
		return []netip.Addr{{}}
	}
	return slices.DeleteFunc(slices.Clone(r.host.NodePorts.Addrs), func(a netip.Addr) bool {
		return route.FamilyOf(a) != family || a.IsLoopback()
	})
}

func (r *renderer) flags(p *route.Port, f *route.Frontend, way route.Way) hns.Flags {
	has := r.writer.state.features
	return hns.Flags{
		DSR:         has.DSR && (f.Kind == route.ClusterIP && r.opt.DSR || f.Kind != route.ClusterIP && way.Pool == route.Local),
		IPv6:        p.Family == route.IPv6,
		ILB:         f.Kind == route.ClusterIP || f.Kind == route.NodePort,
		LocalRouted: f.Kind == route.NodePort,
		Affinity:    has.SessionAffinity && p.Affinity != 0,
	}
}

func (r *renderer) source(family route.Family) netip.Addr {
	if !r.overlay() || !r.opt.SourceVIP.IsValid() || route.FamilyOf(r.opt.SourceVIP) != family {
		return netip.Addr{}
	}
	return r.opt.SourceVIP
}

// protocolOf returns the number of a protocol that HNS balances; 0: it does not.
func protocolOf(p cluster.Protocol) uint8 {
	switch p {
	case cluster.TCP:
		return 6
	case cluster.UDP:
		return 17
	default:
		return 0
	}
}
