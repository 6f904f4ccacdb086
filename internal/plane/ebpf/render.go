package ebpf

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// render returns the entries of a Service: the frontends whose connections programs decide, and their pools.
func (p *Plane) render(svc *route.Service) []entry {
	r := rendering{known: map[key]bool{}}
	for _, port := range portsOf(svc) {
		for i := range port.pools {
			if pool := &port.pools[i]; len(pool.frontends) > 0 {
				r.pool(port, pool)
			}
		}
	}
	return r.list
}

// rendering collects entries without duplicates: ports of the same name have the same pools.
type rendering struct {
	list  []entry
	known map[key]bool
}

func (r *rendering) add(e bpf.Entry) {
	if !r.known[e.Key] {
		r.known[e.Key] = true
		r.list = append(r.list, entry{Key: e.Key, Value: e.Value})
	}
}

// pool adds a pool and its frontends.
func (r *rendering) pool(p *port, pool *pool) {
	local := localAddrs(p.Here, pool.backends)
	for _, f := range pool.frontends {
		r.add(bpf.Frontend{
			At: f.at(p.Family), Protocol: uint8(p.Protocol), Clients: f.clients, Pool: pool.id, Count: pool.slots,
			Scheduler: p.scheduler, SlowStart: p.SlowStart > 0, NotLocal: bpf.NotLocal(local),
		}.Entry())
	}
	if p.Protocol == cluster.UDP {
		for _, b := range pool.backends { // also those of weight 0: sockets may stay on them
			r.add(bpf.Member{Pool: pool.id, Backend: b}.Entry())
		}
	}
	for _, a := range local {
		r.add(bpf.Member{Pool: pool.id, Backend: netip.AddrPortFrom(a, 0)}.Entry())
	}
	for i, b := range p.table(pool) {
		r.add(bpf.Slot{Pool: pool.id, Index: i, Backend: b, Weight: p.Weight(b)}.Entry())
	}
}

// localAddrs returns the addresses of backends that may be on this node.
func localAddrs(here []netip.Addr, backends []netip.AddrPort) (list []netip.Addr) {
	for _, a := range here {
		i, _ := slices.BinarySearchFunc(backends, netip.AddrPortFrom(a, 0), netip.AddrPort.Compare)
		if i < len(backends) && backends[i].Addr() == a {
			list = append(list, a)
		}
	}
	return list
}

// host returns the entries of the node.
func (p *Plane) host(h *route.Host) []entry {
	r := rendering{known: map[key]bool{}}
	for _, a := range slices.Concat(h.Local, h.NodePorts.Addrs) {
		if h.NodePorts.Serve(a) && isNodeAddr(a) {
			r.add(bpf.NodeAddr(a))
		}
	}
	r.add(bpf.Entry{Key: key{Table: bpf.Programs}, Value: p.kernel.Version()})
	return r.list
}

// isNodeAddr reports whether sockets reach NodePorts at an address of this host.
func isNodeAddr(a netip.Addr) bool { return !a.IsLoopback() && !a.IsLinkLocalUnicast() }

// isPod reports whether an address is the source address of a pod on this node. Without a detector each address is. If
// the detector recognizes pods by interfaces, which a program cannot see, none is.
func isPod(d *route.Detector, a netip.Addr) bool {
	contains := func(prefix netip.Prefix) bool { return prefix.Contains(a) }
	return !d.Detects(route.FamilyOf(a)) || slices.ContainsFunc(d.PodCIDRs, contains)
}
