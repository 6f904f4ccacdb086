package explain

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Plane is what a data plane does where planes may differ.
type Plane struct {
	Name        string
	OtherPort   Behaviour // to a clusterIP, at a port that its Service does not have
	Ping        Behaviour // ICMP echo to a clusterIP
	Unallocated Behaviour // to an address of a ServiceCIDR that no Service has
	Ranges      Ranges    // when source ranges are asked
	Ends        Ends      // where what no backend takes is refused or dropped
	Loopback    string    // what it takes for NodePorts on loopback addresses; completes "only if"

	// Path names what the first packet of a connection passes: chains, maps. Nil:
	// that is not told.
	Path func(Passage) []string
}

// Behaviour is a verdict with the sentence that says why, and the path to it if
// the plane tells.
type Behaviour struct {
	Verdict Verdict
	Why     string
	Path    []string
}

// Ranges says when the source ranges of a Service are asked.
type Ranges uint8

// The orders in which packets are looked at.
const (
	RangesFirst       Ranges = iota // before anything else
	RangesWhileServed               // while the Service has endpoints; otherwise everybody is refused
)

// Ends are where a plane refuses or drops connections that lead to no backend.
// Elsewhere they are left alone.
type Ends struct {
	ClusterIPs Places // those to a clusterIP
	External   Places // those to all other addresses, NodePorts among them

	// Unserved says that NodePorts that refuse or drop do so at every address of
	// this node, also where none are served.
	Unserved bool
}

// Places are those that packets pass on their way through a node.
type Places uint8

// The places. A packet of this node to itself passes two of them.
const (
	Arriving Places = 1 << iota // at an address of this node
	Passing                     // from and to others
	Leaving                     // sent by this node itself

	everywhere = Arriving | Passing | Leaving
)

// Passage is a connection that takes a way into a Service, for a Plane to say
// what it passes.
type Passage struct {
	Host    *route.Host
	Service *route.Service
	Port    int // of Service.Ports
	Front   int // of the Fronts of that
	Client  Who
	Way     route.Way      // of such a client
	KeptOut bool           // source ranges do not let the client in, whatever Way says
	Backend netip.AddrPort // the one chosen, to whom the path goes on; not valid: up to the choice

	// Unserved: it is to a NodePort, at an address that serves none (Ends.Unserved).
	Unserved bool
}

// Nftables is the nftables plane.
func Nftables() Plane {
	return Plane{
		Name:        "nftables",
		OtherPort:   Behaviour{Verdict: Refused, Why: "other ports of a clusterIP are refused, so that clients need not wait"},
		Ping:        Behaviour{Verdict: Refused, Why: "a clusterIP is no host: an ICMP echo is refused"},
		Unallocated: Behaviour{Verdict: Dropped, Why: "no Service that is programmed has this address of a ServiceCIDR, and it is kept from leaving the node"},
		Ends:        Ends{ClusterIPs: everywhere, External: everywhere},
		Loopback:    "nodePortAddresses has localhost, or a part of 127.0.0.0/8",
	}
}

// Iptables is the iptables plane. As kube-proxy in this mode it has rules for
// the ports of Services alone, and refuses in KUBE-SERVICES (FORWARD and OUTPUT of
// table filter) and KUBE-EXTERNAL-SERVICES (INPUT and FORWARD), there at any local
// address.
func Iptables() Plane {
	return Plane{
		Name:        "iptables",
		OtherPort:   Behaviour{Verdict: Untouched, Why: "only the ports of its Service are looked at, and other packets to a clusterIP go where the routes of this node lead"},
		Ping:        Behaviour{Verdict: Untouched, Why: "an ICMP echo to a clusterIP goes where the routes of this node lead: only ports of Services are looked at"},
		Unallocated: Behaviour{Verdict: Untouched, Why: "no Service that is programmed has this address of a ServiceCIDR, and such addresses are not kept from leaving the node"},
		Ranges:      RangesWhileServed,
		Ends:        Ends{ClusterIPs: Passing | Leaving, External: Arriving | Passing, Unserved: true},
		Loopback:    "iptables.localhostNodePorts is true and nodePortAddresses holds the address",
	}
}

// asks reports whether source ranges decide on clients that would go a way.
func (p Plane) asks(f *route.Front, w route.Way) bool {
	return f.Restricted && (p.Ranges == RangesFirst || w.Verdict != route.Reject)
}

// path fills in what packets pass: for all, and behind it for each backend.
func (a *asker) path(out *Case, f found, w route.Way) {
	if a.view.Plane.Path == nil || out.Verdict == Untouched {
		return
	}
	p := Passage{
		Host: &a.view.Routes.Host, Service: f.service, Port: index(f.service.Ports, f.port), Front: index(f.port.Fronts, f.front),
		Client: out.Client.CountsAs, Way: w, KeptOut: out.Access != nil && !out.Access.Allowed,
		Unserved: f.unserved,
	}
	out.Path = a.view.Plane.Path(p)
	if out.Verdict != Balanced {
		return
	}
	for i, b := range f.port.Backends(w.Pool) {
		p.Backend = b
		out.Backends[i].Path = beyond(out.Path, a.view.Plane.Path(p))
	}
}

// beyond is what a path has that leads on from another.
func beyond(common, whole []string) []string {
	if n := len(common); len(whole) >= n && slices.Equal(whole[:n], common) {
		return whole[n:]
	}
	return whole
}

// index is where in a list something stands.
func index[T any](list []T, at *T) int {
	for i := range list {
		if &list[i] == at {
			return i
		}
	}
	return -1
}
