package ebpf

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// render returns the entries of a Service: the frontends whose connections the programs can decide exactly
// as the packet plane does, and their pools.
func (p *Plane) render(svc *route.Service) []entry {
	if svc == nil || svc.Ignored != "" {
		return nil
	}
	r := rendering{known: map[key]bool{}}
	sockets := fits(svc)
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if !slices.Contains(p.opt.Families, port.Family) {
			continue
		}
		if p.opt.GuardNodePorts && port.Protocol != cluster.SCTP { // the kernel runs no program when SCTP sockets bind
			r.guard(port)
		}
		if sockets && decidable(port) {
			r.port(svc.Name, port)
		}
	}
	return r.list
}

// mostEntries is how many slots and members a Service has at most, about 26 MB.
const mostEntries = 1 << 18

// fits reports whether a Service has at most mostEntries. Packets serve a larger one: its tenant must not take the memory of the node.
func fits(svc *route.Service) bool {
	n := 0
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, pool := range []route.Pool{route.Cluster, route.Local} {
			if decidable(p) && p.Uses(pool) {
				n += slotCount(p, pool) + len(p.Backends(pool))
			}
		}
	}
	return n <= mostEntries
}

// guard adds the NodePorts of a port that other programs must not bind, also those that are served by packets.
func (r *rendering) guard(p *route.Port) {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Kind == route.NodePort {
			r.add(bpf.NodePort(addrOf(p, f), f.Port, uint8(p.Protocol)))
		}
	}
}

// decidable reports whether programs may decide connections of a port. They do not run for SCTP. With session
// affinity only the packet plane remembers the backends of clients.
func decidable(p *route.Port) bool {
	atSockets := func(f route.Frontend) bool { return balances(p.Protocol, f.Port) }
	return p.Affinity == 0 && slices.ContainsFunc(p.Frontends, atSockets)
}

// balances reports whether programs balance sockets that connect to a port: of UDP only those of DNS. A socket that stays
// connected would lose its backend for good, and datagrams of a pod that is asked directly would seem to come from the Service.
func balances(protocol cluster.Protocol, port uint16) bool {
	return protocol == cluster.TCP || protocol == cluster.UDP && port == cluster.DNSPort
}

// exact reports whether a backend sees the same source address if clients connect to it directly as if their packets are
// translated. Connections of the node have its own address, with and without source NAT.
func exact(clients bpf.Clients, w route.Way) bool {
	return w.Verdict == route.Balance && (clients == bpf.OfNode || !w.Masquerade)
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

func (r *rendering) port(name cluster.Name, p *route.Port) {
	slots := [2][]netip.AddrPort{route.Cluster: slotsOf(p, route.Cluster), route.Local: slotsOf(p, route.Local)}
	local := [2][]netip.Addr{route.Cluster: localAddrs(p, route.Cluster), route.Local: localAddrs(p, route.Local)}
	var used [2]bool
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Restricted || !balances(p.Protocol, f.Port) { // by source addresses, which a socket does not have before it connects
			continue
		}
		for clients, way := range []route.Way{bpf.OfPods: f.Pods, bpf.OfNode: f.Node} {
			if !exact(bpf.Clients(clients), way) || len(slots[way.Pool]) == 0 {
				continue
			}
			used[way.Pool] = true
			r.add(bpf.Frontend{
				At: netip.AddrPortFrom(addrOf(p, f), f.Port), Protocol: uint8(p.Protocol), Clients: bpf.Clients(clients),
				Pool: poolOf(name, p, way.Pool), Count: len(slots[way.Pool]),
				Scheduler: schedulerOf(p), Ramps: p.SlowStart > 0, Strangers: bpf.Strangers(local[way.Pool]),
			}.Entry())
		}
	}
	for pool, is := range used {
		if is {
			id := poolOf(name, p, route.Pool(pool))
			if p.Protocol == cluster.UDP {
				r.members(id, p.Backends(route.Pool(pool))) // before slots: a socket stays on a member
			}
			for _, a := range local[pool] {
				r.add(bpf.Member{Pool: id, Backend: netip.AddrPortFrom(a, 0)}.Entry())
			}
			r.pool(p, id, slots[pool])
		}
	}
}

func (r *rendering) pool(p *route.Port, id bpf.Pool, slots []netip.AddrPort) {
	for i, b := range slots {
		r.add(bpf.Slot{Pool: id, Index: i, Backend: b, Weight: p.Weight(b)}.Entry())
	}
}

// members adds the backends on which sockets may stay, also those of weight 0.
func (r *rendering) members(id bpf.Pool, backends []netip.AddrPort) {
	for _, b := range backends {
		r.add(bpf.Member{Pool: id, Backend: b}.Entry())
	}
}

// localAddrs returns the addresses of the backends of a pool that may be on this node.
func localAddrs(p *route.Port, pool route.Pool) (list []netip.Addr) {
	backends := p.Backends(pool)
	for _, a := range p.Here {
		if i, _ := slices.BinarySearchFunc(backends, netip.AddrPortFrom(a, 0), netip.AddrPort.Compare); i < len(backends) && backends[i].Addr() == a {
			list = append(list, a)
		}
	}
	return list
}

func addrOf(p *route.Port, f *route.Frontend) netip.Addr {
	switch {
	case f.Kind != route.NodePort:
		return f.Addr
	case p.Family == route.IPv4:
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// poolOf returns the id of a pool: a hash of its name. So a restart computes the same ids, and nothing has to be stored. Collisions cannot
// be constructed.
func poolOf(name cluster.Name, p *route.Port, pool route.Pool) bpf.Pool {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%s/%s", name.Namespace, name.Name, p.Name, p.Protocol, p.Family))
	id := bpf.Pool(sum[:16])
	id[15] = byte(pool) + 1
	return id
}

// host returns the entries of the node.
func (p *Plane) host(h *route.Host) []entry {
	r := rendering{known: map[key]bool{}}
	for _, a := range slices.Concat(h.Local, h.NodePorts.Addrs) {
		if h.NodePorts.Serve(a) && isNodeAddr(a) && slices.Contains(p.opt.Families, route.FamilyOf(a)) {
			r.add(bpf.NodeAddr(a))
		}
	}
	r.add(bpf.Entry{Key: key{Table: bpf.Programs}, Value: p.kernel.Version()})
	return r.list
}

// isNodeAddr reports whether sockets reach NodePorts at an address of this host.
func isNodeAddr(a netip.Addr) bool { return !a.IsLoopback() && !a.IsLinkLocalUnicast() }

// podPrefixes returns the source addresses of pods on this node. Without a detector these are all addresses. If the detector recognizes pods
// by interfaces, which a program cannot see, there are none.
func podPrefixes(d *route.Detector, f route.Family) []netip.Prefix {
	if !d.Detects(f) {
		if f == route.IPv4 {
			return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
		}
		return []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	var list []netip.Prefix
	for _, p := range d.PodCIDRs {
		if route.FamilyOf(p.Addr()) == f {
			list = append(list, p)
		}
	}
	return list
}
