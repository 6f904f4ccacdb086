package userspace

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// PortRange is a range of port numbers, with both ends.
type PortRange struct{ First, Last uint16 }

// ports gives each socket an address. The port follows from the name of the Service port, as long
// as no other socket has it, so that it is the same one after a restart. A socket keeps its
// address until it is freed. It is safe for concurrent use.
type ports struct {
	addrs map[route.Family]netip.Addr
	from  PortRange

	mu    sync.Mutex
	at    map[key]netip.AddrPort
	users map[socketAddr]key
	leave []key // of closed sockets, to be freed after the next plan

	inherited map[string]netip.AddrPort // addresses of sockets of the previous run, by the text of their keys
	reserved  map[netip.AddrPort]bool   // the values of inherited
}

// socketAddr is an address that a socket can have. A key of no Service stands for another program.
type socketAddr struct {
	protocol cluster.Protocol
	at       netip.AddrPort
}

func newPorts(addrs []netip.Addr, from PortRange) *ports {
	p := &ports{
		addrs: map[route.Family]netip.Addr{}, from: cmp.Or(from, PortRange{unprivileged, 65535}),
		at: map[key]netip.AddrPort{}, users: map[socketAddr]key{},
	}
	for _, a := range addrs {
		p.addrs[route.FamilyOf(a)] = a
	}
	return p
}

// serve reports whether there is an address of a family.
func (p *ports) serve(f route.Family) bool { return p.addrs[f].IsValid() }

// of returns the address of a socket: with the preferred port, if it is not 0 and no other socket
// has it. The port is 0 if all ports of the range are in use.
func (p *ports) of(k key, preferred uint16) netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, has := p.at[k]; has {
		return at
	}
	name := k.String()
	if at, had := p.inherited[name]; had && p.suits(k, at) && p.take(k, at) {
		return at
	}
	addr := p.addrs[k.port.Family]
	if at := netip.AddrPortFrom(addr, preferred); preferred != 0 && p.take(k, at) {
		return at
	}
	n := uint32(p.from.Last-p.from.First) + 1
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // it returns no error
	first := h.Sum32() % n
	for i := range n {
		if at := netip.AddrPortFrom(addr, p.from.First+uint16((first+i)%n)); p.take(k, at) {
			return at
		}
	}
	p.forget()
	return netip.AddrPortFrom(addr, 0)
}

// forget makes the next attempts try the addresses again that other programs had. The caller holds the lock.
func (p *ports) forget() {
	maps.DeleteFunc(p.users, func(_ socketAddr, k key) bool { return k == key{} })
}

// inherit reserves the addresses of sockets of the previous run for the same sockets, until it is called with others.
func (p *ports) inherit(addrs map[string]netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inherited, p.reserved = addrs, map[netip.AddrPort]bool{}
	for _, at := range addrs {
		p.reserved[at] = true
	}
}

// suits reports whether a socket may have an address, by the addresses and ports that are configured. The caller
// holds the lock.
func (p *ports) suits(k key, at netip.AddrPort) bool {
	return at.Addr() == p.addrs[k.port.Family] && at.Port() >= p.from.First && at.Port() <= p.from.Last
}

// known returns the address that a socket has. It returns false if it has none.
func (p *ports) known(k key) (netip.AddrPort, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, has := p.at[k]
	return at, has
}

func (p *ports) take(k key, at netip.AddrPort) bool {
	where := socketAddr{k.port.Protocol, at}
	if _, used := p.users[where]; used || p.reserved[at] && p.inherited[k.String()] != at {
		return false
	}
	p.users[where], p.at[k] = k, at
	return true
}

// refuse makes of return another address for a socket, as another program has this one.
func (p *ports) refuse(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, has := p.at[k]; has {
		p.users[socketAddr{k.port.Protocol, at}] = key{}
		delete(p.at, k)
	}
}

// release frees the addresses of sockets that the plan before this one closed, unless they are open
// again. Those of sockets that this plan closed stay for now, as the change may still be described.
func (p *ports) release(closed []key, open func(key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.leave {
		if !open(k) {
			p.free(k)
		}
	}
	p.leave = closed
}

// retain frees the addresses of sockets that were never opened: their plans failed.
func (p *ports) retain(open func(key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.at {
		if !open(k) && !slices.Contains(p.leave, k) {
			p.free(k)
		}
	}
}

// free frees an address. The caller holds the lock.
func (p *ports) free(k key) {
	if at, has := p.at[k]; has {
		delete(p.users, socketAddr{k.port.Protocol, at})
		delete(p.at, k)
	}
}
