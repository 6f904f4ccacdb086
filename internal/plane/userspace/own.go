package userspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Addresses adds addresses to this host and removes them: an assign.Assigner.
type Addresses interface {
	// Add adds addresses that the host lacks, and returns the reason for each that failed.
	Add(context.Context, []netip.Addr) map[netip.Addr]error

	// Retain removes all addresses that were added, except some, and returns them.
	Retain(keep []netip.Addr) ([]netip.Addr, error)
}

// isPod reports whether an address is that of a pod on this node. It cannot recognize pods by the interface on which
// their packets arrive.
func (p *Plane) isPod(client netip.Addr) bool {
	d := p.pods.Load()
	return d != nil && anyContains(d.PodCIDRs, client)
}

// isLocal reports whether this host has an address.
func (p *Plane) isLocal(a netip.Addr) bool {
	list := p.local.Load()
	return list != nil && slices.Contains(*list, a)
}

func anyContains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// policy is the pools and restrictions of a frontend, by kind of client.
type policy struct {
	pods, node, others route.Action
	restricted         bool
	allow              string // prefixes, with spaces between them
}

func policyOf(f *route.Frontend) policy {
	p := policy{pods: f.Pods, node: f.Node, others: f.Others, restricted: f.Restricted}
	for _, w := range []*route.Action{&p.pods, &p.node, &p.others} {
		w.Masquerade = false // the process connects to backends with an address of this node
	}
	var allow []string
	for _, prefix := range f.Allow {
		allow = append(allow, prefix.String())
	}
	p.allow = strings.Join(allow, " ")
	return p
}

// pool returns the pool of most clients; false if no client is served.
func (p policy) pool() (route.Pool, bool) {
	for _, w := range []route.Action{p.others, p.pods, p.node} {
		if w.Verdict == route.Balance {
			return w.Pool, true
		}
	}
	return 0, false
}

// String returns "cluster", or "pods cluster, node local, others dropped, only for 192.0.2.0/24".
func (p policy) String() string {
	var text string
	if p.pods == p.node && p.node == p.others {
		text = wayName(p.pods)
	} else {
		text = fmt.Sprintf("pods %s, node %s, others %s", wayName(p.pods), wayName(p.node), wayName(p.others))
	}
	if p.restricted {
		text += strings.TrimSuffix(", only for "+p.allow, " ")
	}
	return text
}

func wayName(w route.Action) string {
	if w.Verdict == route.Balance {
		return w.Pool.String()
	}
	return [...]string{route.Reject: "refused", route.Drop: "dropped"}[w.Verdict]
}

// frontends returns the sockets of a port at the addresses of its frontends.
func (p *Plane) frontends(port *route.Port, id route.PortID) []entry {
	if p.opt.Own != nil && !p.ports.serve(id.Family) {
		return nil
	}
	var list []entry
	for i := range port.Frontends {
		f := &port.Frontends[i]
		policy := policyOf(f)
		pool, balances := policy.pool()
		if !balances {
			continue
		}
		for _, addr := range p.frontendAddrs(f, id.Family) {
			at := netip.AddrPortFrom(addr, f.Port)
			list = append(list, entry{Key: key{id, frontendSocket, at}, Value: value{at: at, pool: pool, policy: policy}})
		}
	}
	return list
}

// frontendAddrs returns the addresses of a frontend at which a socket listens: its own, or those of this node that
// serve NodePorts. With rules it is only ::1, from where the kernel routes no packet to another host.
func (p *Plane) frontendAddrs(f *route.Frontend, family route.Family) []netip.Addr {
	switch {
	case p.opt.Own != nil && f.Addr.IsValid():
		return []netip.Addr{f.Addr}
	case p.opt.Own != nil:
		return p.nodePorts.Listen(family)
	case p.opt.Rules != nil && !f.Addr.IsValid() && family == route.IPv6 && p.nodePorts.Loopback6:
		return []netip.Addr{netip.IPv6Loopback()}
	}
	return nil
}

// admit returns the admission of clients to a socket. Before the first write is complete it admits only clients that
// rules sent there: there may be no rules that protect the sockets, or rules of an earlier run that send clients to
// the socket of another Service.
func (p *Plane) admit(k key, v value, svc *route.Service) func(netip.Addr) relay.Admission {
	if k.part != frontendSocket {
		sentByRules := p.sentByRules(k, v, svc)
		return func(netip.Addr) relay.Admission {
			if p.sockets.guarded.Load() {
				return relay.Admission{Pool: int(v.pool)}
			}
			return relay.Admission{Pool: int(v.pool), Refused: true, Unless: sentByRules}
		}
	}
	allow := parsePrefixes(v.policy.allow)
	return func(client netip.Addr) relay.Admission {
		way := v.policy.others
		switch {
		case client.IsLoopback(), client == v.at.Addr(), p.isLocal(client):
			way = v.policy.node
		case p.isPod(client):
			way = v.policy.pods
		}
		refused := way.Verdict != route.Balance || !p.sockets.guarded.Load() ||
			v.policy.restricted && !anyContains(allow, client)
		return relay.Admission{Pool: int(way.Pool), Refused: refused}
	}
}

// sentByRules returns a function that reports whether rules sent a client with this original destination to a socket.
// Rules take effect a moment before the process knows that they were written. It returns nil if rules send no client
// there.
func (p *Plane) sentByRules(k key, v value, svc *route.Service) func(netip.AddrPort) bool {
	if p.opt.Rules == nil || svc == nil || p.sockets.guarded.Load() {
		return nil
	}
	return func(to netip.AddrPort) bool {
		for i := range svc.Ports {
			for j := range svc.Ports[i].Frontends {
				f := &svc.Ports[i].Frontends[j]
				if svc.Ports[i].ID(svc.Name) == k.port && f.Port == to.Port() && (f.Addr == to.Addr() || !f.Addr.IsValid()) {
					return to != v.at
				}
			}
		}
		return false
	}
}

func parsePrefixes(text string) []netip.Prefix {
	var list []netip.Prefix
	for field := range strings.FieldsSeq(text) {
		list = append(list, netip.MustParsePrefix(field)) // policyOf wrote it
	}
	return list
}

// addAddresses adds to this host the addresses of sockets that are to be opened.
func (w writer) addAddresses(ctx context.Context, steps []*step) {
	own := w.plane.opt.Own
	if own == nil {
		return
	}
	want := map[netip.Addr]bool{}
	for _, s := range steps {
		addr := s.Key.at.Addr()
		if s.Op == ledger.Add && s.Key.part == frontendSocket && !addr.IsUnspecified() && w.lacks[addr] == nil {
			want[addr] = true
		}
	}
	if len(want) > 0 {
		maps.Copy(w.lacks, own.Add(ctx, slices.SortedFunc(maps.Keys(want), netip.Addr.Compare)))
	}
}

// retainAddresses removes the addresses at which no socket listens.
func (p *Plane) retainAddresses() error {
	if p.opt.Own == nil {
		return nil
	}
	_, err := p.opt.Own.Retain(p.sockets.addrs())
	return err
}

// addrs returns the addresses of the open sockets.
func (s *sockets) addrs() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]netip.Addr, 0, len(s.open))
	for k := range s.open {
		if k.part == frontendSocket {
			list = append(list, k.at.Addr())
		}
	}
	return list
}
