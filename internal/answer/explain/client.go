package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// client is a Client with its address as a value.
type client struct {
	Client
	addr netip.Addr // invalid: unknown
	own  bool       // it is this node, whatever its class

	alike bool // the plane does not distinguish clients (plane.Facts)
}

// way returns where a frontend sends the client.
func (c *client) way(f *route.Frontend) route.Action {
	switch {
	case c.alike && f.Kind == route.ClusterIP:
		return f.Pods
	case c.alike:
		return f.Others
	case c.CountsAs == Pod:
		return f.Pods
	case c.CountsAs == Node:
		return f.Node
	}
	return f.Others
}

// client classifies the source of the question. An address of this node in a pod CIDR counts as a pod.
func (a *asker) client(to netip.Addr) client {
	addr := a.source(to)
	local := len(a.sources) == 0 || a.isLocal(addr)
	c := client{addr: addr, own: local, alike: a.view.Plane.Alike, Client: Client{Via: a.question.Via}}
	if addr.IsValid() {
		c.Address = addr.String()
	}
	d := a.view.Routes.Host.Detector
	switch {
	case d.Interface != "" || d.Prefix != "":
		c.CountsAs, c.Why = a.byInterface(d, addr, local)
	case inside(d.PodCIDRs, addr):
		c.CountsAs, c.Why = Pod, fmt.Sprintf("%s is in %s, a pod CIDR", addr, text.Join(containing(d.PodCIDRs, addr), ", "))
	case local:
		c.CountsAs, c.Why = Node, a.whyNode(addr)
	case !d.Detects(route.FamilyOf(addr)):
		c.CountsAs, c.Why = Outside, fmt.Sprintf("pods are not recognized in %s: no pod CIDR is known", route.FamilyOf(addr))
	default:
		c.CountsAs = Outside
		c.Why = fmt.Sprintf("%s is not in the pod CIDRs (%s) and not an address of this node", addr,
			text.Join(filter(d.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() }), ", "))
	}
	return c
}

// source returns the address from which the client connects to an address; invalid: it is not known.
func (a *asker) source(to netip.Addr) netip.Addr {
	if len(a.sources) == 0 {
		return a.ownSource(to)
	}
	i := slices.IndexFunc(a.sources, func(addr netip.Addr) bool { return addr.Is4() == to.Is4() })
	return a.sources[max(i, 0)]
}

func (a *asker) whyNode(addr netip.Addr) string {
	if len(a.sources) > 0 {
		return addr.String() + " is an address of this node"
	}
	return "this node itself"
}

// byInterface classifies a client by the interface on which a connection arrives, if the
// question has it. Connections of this node itself arrive on none.
func (a *asker) byInterface(d route.Detector, addr netip.Addr, local bool) (Who, string) {
	rule, matches := "on "+d.Interface, a.question.Via == d.Interface
	if d.Prefix != "" {
		rule, matches = "on interfaces named "+d.Prefix+"...", strings.HasPrefix(a.question.Via, d.Prefix)
	}
	switch {
	case local:
		return Node, a.whyNode(addr)
	case a.question.Via != "" && matches:
		return Pod, fmt.Sprintf("it arrives on %s, and pods arrive %s", a.question.Via, rule)
	case a.question.Via != "":
		return Outside, fmt.Sprintf("it arrives on %s, and pods arrive %s", a.question.Via, rule)
	}
	if a.view.Node != nil && inside(a.view.Node.PodCIDRs, addr) {
		return Pod, fmt.Sprintf("pods arrive %s, and %s is assumed to do so, as it is in a podCIDR of this node; "+
			"no interface was given", rule, addr)
	}
	return Outside, fmt.Sprintf("pods arrive %s, and %s is assumed not to; no interface was given", rule, addr)
}

// ownSource returns the source address that this node uses: the destination if that is its own, or else its primary
// address. All of 127.0.0.0/8 is its own, with 127.0.0.1 as the source for addresses that no interface has.
func (a *asker) ownSource(to netip.Addr) netip.Addr {
	switch {
	case to.Is4() && to.IsLoopback() && !slices.Contains(a.view.Local, to):
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case a.isLocal(to):
		return to
	}
	if a.view.Node != nil {
		for _, addr := range a.view.Node.Addresses {
			if addr.Is4() == to.Is4() {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// ownVIP reports whether this node uses an address of a Service as source. For NodePorts the address is invalid.
func (a *asker) ownVIP(addr netip.Addr) bool {
	return a.view.Plane.OwnVIPs && addr.IsValid() && !a.isLocal(addr)
}

// isLocal reports whether an address is one of this node.
func (a *asker) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(a.view.Local, addr) ||
		a.view.Node != nil && slices.Contains(a.view.Node.Addresses, addr)
}

func inside(prefixes []netip.Prefix, a netip.Addr) bool { return len(containing(prefixes, a)) > 0 }

func containing(prefixes []netip.Prefix, a netip.Addr) []netip.Prefix {
	return filter(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func filter[T any](all []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return !keep(x) })
}
