// Package route decides all Kubernetes policy, once for all planes: which
// address leads to which backends, from where, with or without source NAT,
// sticky or not, refused or dropped. It knows no kernel words and does no I/O.
//
// A Compiler turns changes of the cluster into changes of a Table.
package route

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Family is an IP family, by its version number.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", as metrics and the API spell it.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// Service is one Service, decided for this node. It is never changed once made.
type Service struct {
	Name   cluster.Name
	Ports  []Port
	Health *Health // nil: no load balancer asks for it

	// Ignored says why nothing is programmed, for people; empty otherwise.
	Ignored string

	// Lost counts the addresses and ports in the Service that belong to other
	// Services or to its own earlier ports, and are not programmed.
	Lost int
}

// Port is one port of a Service in one family: its frontends and backends.
type Port struct {
	Name     string
	Protocol cluster.Protocol
	Family   Family
	Fronts   []Front

	// Cluster and Local are the pools that Ways of the fronts point at: usable
	// backends anywhere, and on this node. Each is sorted, without duplicates,
	// and empty when no front points at it.
	Cluster []netip.AddrPort
	Local   []netip.AddrPort

	// Here are the addresses in the pools that may be on this node. Such a backend
	// may reach itself through a front (hairpin) and needs source NAT then.
	Here []netip.Addr

	// Affinity, if not 0, keeps a client address on its backend until the client
	// has made no new connection for this long. The fronts of a port share it.
	Affinity time.Duration

	// Serving are all serving backends whatever the policy, sorted. It is set for
	// UDP only, to find the established flows that must end.
	Serving []netip.AddrPort
}

// Kind says how a front came to be.
type Kind uint8

// The kinds of fronts.
const (
	ClusterIP Kind = iota
	NodePort
	ExternalIP
	LoadBalancer

	healthCheck // the health check port of a Service; no front has this kind
)

// String returns the word used in messages.
func (k Kind) String() string {
	return [...]string{"clusterIP", "nodePort", "externalIP", "loadBalancerIP", "healthCheckNodePort"}[k]
}

// Front is an address, port and protocol that clients use. The small fields
// stand together, as there are very many fronts.
type Front struct {
	Kind Kind
	Port uint16

	// What happens to a connection, by where it comes from: pods as the local
	// traffic detector sees them, this node itself, all other clients. Without a
	// detector no client counts as a pod, and Pods equals Others.
	Pods, Node, Others Way

	// Allow are the client addresses that may connect if Restricted; others are
	// dropped if the front has backends. They are in the order of the Service, none
	// inside another. An empty list admits no client.
	Restricted bool
	Addr       netip.Addr // invalid for NodePort: any address of Host.NodePorts
	Allow      []netip.Prefix
}

// Way is what happens to a new connection.
type Way struct {
	Verdict    Verdict
	Pool       Pool // for Balance
	Masquerade bool // for Balance: give it this node's address as source
}

// Key identifies a front among all fronts of a table: no two share one.
type Key struct {
	Family   Family
	Protocol cluster.Protocol
	Port     uint16
	Addr     netip.Addr // invalid for NodePorts
}

// Key returns the key of a front of this port.
func (p *Port) Key(f *Front) Key { return Key{p.Family, p.Protocol, f.Port, f.Addr} }

// Verdict says whether a connection is balanced, refused or dropped.
type Verdict uint8

// The verdicts.
const (
	Balance Verdict = iota
	Reject          // ICMP port unreachable
	Drop            // silence
)

// Pool names one of a Port's lists of backends.
type Pool uint8

// The pools.
const (
	Cluster Pool = iota
	Local
)

// Backends returns the backends in a pool.
func (p *Port) Backends(pool Pool) []netip.AddrPort {
	if pool == Local {
		return p.Local
	}
	return p.Cluster
}

// Host is the policy of the whole node.
type Host struct {
	Detector      Detector
	MasqueradeAll bool
	NodePorts     NodePorts
	ServiceCIDRs  []netip.Prefix // sorted, none inside another; addresses in them that belong to no Service are dropped
}

// Detector tells pods on this node from other clients, for each family on its
// own: one without a rule for a family sees no pods in it.
type Detector struct {
	PodCIDRs  []netip.Prefix // by source address; sorted, none inside another
	Interface string         // or by interface the packet arrives on
	Prefix    string         // or by the beginning of that interface's name
}

// Detects reports whether there is a rule for the family.
func (d Detector) Detects(f Family) bool {
	if d.Interface != "" || d.Prefix != "" {
		return true
	}
	for _, p := range d.PodCIDRs {
		if FamilyOf(p.Addr()) == f {
			return true
		}
	}
	return false
}

// NodePorts says which addresses of this node serve NodePorts.
type NodePorts struct {
	All4, All6 bool         // every local address but loopback
	All127     bool         // with All4: every address in 127.0.0.0/8 as well
	Addrs      []netip.Addr // besides those exactly these; sorted
}

// All reports whether every local address of the family serves NodePorts.
func (n NodePorts) All(f Family) bool {
	if f == IPv4 {
		return n.All4
	}
	return n.All6
}

// Serve reports whether NodePorts are served on an address of this node.
func (n NodePorts) Serve(a netip.Addr) bool { return n.implied(a) || slices.Contains(n.Addrs, a) }

// ServeAny reports whether NodePorts are served on any address of a family.
func (n NodePorts) ServeAny(f Family) bool {
	return n.All(f) || slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return FamilyOf(a) == f })
}

// Loopback4 reports whether NodePorts are served on addresses in 127.0.0.0/8.
func (n NodePorts) Loopback4() bool {
	return n.All127 || slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() && a.IsLoopback() })
}

// Table is the desired state. Each Compile changes it in place, but replaces the
// Services in it and never changes one.
type Table struct {
	Host     Host
	Services map[cluster.Name]*Service
}

// Change lists the differences that one Compile made in a Table.
type Change struct {
	Table   *Table
	Touched []Touch
	OldHost *Host // nil: Host is as before

	// Partly allows a plan that compares everything to leave out parts of large
	// Services that the kernel does not hold at all; see plane.Partial.
	Partly bool

	// Underway are the Services that wait to be written, in whole or in part: what the
	// kernel holds of each once this Change is applied; nil: nothing.
	Underway map[cluster.Name]*Service
}

// InKernel returns a Service as the kernel holds it once the Change is applied.
func (c *Change) InKernel(name cluster.Name) *Service {
	if svc, ok := c.Underway[name]; ok {
		return svc
	}
	return c.Table.Services[name]
}

// Touch is one Service before and after; nil where there was or is none.
type Touch struct {
	Name     cluster.Name
	Old, New *Service
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool { return len(c.Touched) == 0 && c.OldHost == nil }
