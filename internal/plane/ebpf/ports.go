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

// port is what programs do for a port of a Service. portsOf computes it; entries, paths, shares and followers read it.
type port struct {
	*route.Port
	scheduler bpf.Scheduler
	pools     [2]pool // by route.Pool
}

// pool holds the backends from which programs choose.
type pool struct {
	id        bpf.Pool
	frontends []frontend       // none: packets serve all connections to the pool
	backends  []netip.AddrPort // all, in the order of the route
	weighted  []netip.AddrPort // those whose weight is not 0
	slots     int              // number of slots
}

// frontend is an address and port, for a group of clients whose connections programs decide.
type frontend struct {
	*route.Frontend
	clients bpf.Clients
}

// mostEntries is how many slots and members a Service has at most, about 26 MB. Packets serve a larger one: its tenant
// must not take the memory of the node.
const mostEntries = 1 << 18

// portsOf returns the ports of a Service whose connections programs may decide; none of a nil Service. They do not run
// for SCTP. With session affinity only the packet plane remembers the backends of clients.
func portsOf(svc *route.Service) (list []*port) {
	if svc == nil || svc.Ignored != "" {
		return nil
	}
	entries := 0
	for i := range svc.Ports {
		p := &svc.Ports[i]
		atSockets := func(f route.Frontend) bool { return balances(p.Protocol, f.Port) }
		if p.Affinity != 0 || !slices.ContainsFunc(p.Frontends, atSockets) {
			continue
		}
		decided := newPort(svc.Name, p)
		entries += decided.entries()
		list = append(list, decided)
	}
	if entries > mostEntries {
		for _, p := range list {
			p.pools[route.Cluster].frontends, p.pools[route.Local].frontends = nil, nil
		}
	}
	return list
}

func newPort(name cluster.Name, p *route.Port) *port {
	decided := &port{Port: p, scheduler: schedulerOf(p)}
	for _, k := range []route.Pool{route.Cluster, route.Local} {
		decided.pools[k] = newPool(p, p.Backends(k))
		decided.pools[k].id = poolID(name, p, k)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		// A restriction is by source addresses, which a socket does not have before it connects
		if f.Restricted || !balances(p.Protocol, f.Port) {
			continue
		}
		for clients, way := range []route.Action{bpf.OfPods: f.Pods, bpf.OfNode: f.Node} {
			if to := &decided.pools[way.Pool]; exact(bpf.Clients(clients), way) && to.slots > 0 {
				to.frontends = append(to.frontends, frontend{f, bpf.Clients(clients)})
			}
		}
	}
	return decided
}

// entries returns how many slots and members the pools have.
func (p *port) entries() (n int) {
	for i := range p.pools {
		if pool := &p.pools[i]; len(pool.frontends) > 0 {
			n += pool.slots + len(pool.backends)
		}
	}
	return n
}

// poolOf returns the pool to which programs send the clients of a frontend; nil: packets serve them.
func (p *port) poolOf(f *route.Frontend, clients bpf.Clients) *pool {
	for i := range p.pools {
		if slices.Contains(p.pools[i].frontends, frontend{f, clients}) {
			return &p.pools[i]
		}
	}
	return nil
}

// balances reports whether programs balance sockets that connect to a port. For UDP these are sockets of DNS only: any
// other socket that stays connected could never change to another backend, and would take datagrams that it gets from a
// pod at its own address for datagrams of the Service.
func balances(protocol cluster.Protocol, port uint16) bool {
	return protocol == cluster.TCP || protocol == cluster.UDP && port == cluster.DNSPort
}

// exact reports whether a backend sees the same source address if clients connect to it directly as if their packets
// are translated. Connections of the node have its own address, with and without source NAT.
func exact(clients bpf.Clients, w route.Action) bool {
	return w.Verdict == route.Balance && (clients == bpf.OfNode || !w.Masquerade)
}

// at returns the address of a frontend in its key.
func (f frontend) at(family route.Family) netip.AddrPort {
	if f.Kind == route.NodePort {
		return netip.AddrPortFrom(family.Unspecified(), f.Port)
	}
	return netip.AddrPortFrom(f.Addr, f.Port)
}

// poolID returns the id of a pool: a hash of its name. So a restart computes the same ids, and nothing has to be
// stored. Collisions cannot be constructed.
func poolID(name cluster.Name, p *route.Port, pool route.Pool) bpf.Pool {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%s/%s", name.Namespace, name.Name, p.Name, p.Protocol, p.Family))
	id := bpf.Pool(sum[:16])
	id[15] = byte(pool) + 1
	return id
}
