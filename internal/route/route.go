// Package route decides all Kubernetes policy, once for all planes: which address leads to which backends, from where,
// with or without source NAT, with or without session affinity, refused or dropped. It contains nothing of a kernel
// mechanism and does no I/O.
//
// A Compiler turns changes of the cluster into changes of a Table.
package route

import (
	"cmp"
	"fmt"
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

// Families returns both families.
func Families() []Family { return []Family{IPv4, IPv6} }

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

// Unspecified returns the unspecified address of the family.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// In reports whether any of the addresses is of the family.
func (f Family) In(addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return FamilyOf(a) == f })
}

// Service is the route of one Service on this node. It does not change.
type Service struct {
	Name   cluster.Name
	Ports  []Port
	Health *Health // nil: it has no health check node port

	// Ignored is why the Service is not programmed; empty: it is.
	Ignored string

	// Lost is how many of its addresses and ports belong to other Services or to earlier ports of its own.
	Lost int
}

// Port is one port of a Service in one family: its frontends and backends.
type Port struct {
	Name      string
	Protocol  cluster.Protocol
	Family    Family
	Frontends []Frontend

	// Cluster and Local are the pools that Ways of the frontends point at: usable backends anywhere, and on this node.
	// Each is sorted, without duplicates, and empty when no frontend points at it.
	Cluster []netip.AddrPort
	Local   []netip.AddrPort

	// Here lists the addresses in the pools that may be on this node. Such a backend
	// may connect to itself through a frontend (hairpin), which needs source NAT.
	Here []netip.Addr

	// Unplaced lists the addresses of Here whose node is not known, such as backends outside of the cluster. Sorted.
	Unplaced []netip.Addr

	// Affinity, if not 0, keeps a client on its backend until it has made no new connection for this long.
	Affinity time.Duration

	// Scheduler names the algorithm that chooses backends: that of the Service, or of the node (Options.Scheduler). Empty:
	// the default of the plane.
	Scheduler string

	// SlowStart is how long the share of a new backend grows, for planes that do that. 0: it has all of it at once.
	SlowStart time.Duration

	// ProxyHeader sends TCP backends the addresses of clients (PROXY protocol, version 2), in planes that connect.
	ProxyHeader bool

	// PreserveDestination means that backends see the load balancer address as the destination.
	// Connections to it and to the NodePort then stay on this node (Options.PreserveDestination).
	PreserveDestination bool

	// Owners are the nodes with usable backends if nodes pass connections of clients outside on to each other
	// (Options.Direct): every node passes those to an external address to the same owner, which sends them to backends of
	// its own and keeps the address of the client. Sorted by name; the same on every node. Empty: they do not.
	Owners []Owner

	// HealthPort is the health check node port of the Service; 0: it has none.
	HealthPort uint16

	// Ejection says which failures eject TCP backends; the zero value: none. Ejected has the backends that are left out of
	// a pool for that. Sorted, without duplicates.
	Ejection cluster.Ejection
	Ejected  []netip.AddrPort

	// Weights has the backends whose weight is not 1; see Weight.
	Weights map[netip.AddrPort]uint16

	// Serving lists all serving backends, sorted, for UDP only: established flows to any other backend end.
	Serving []netip.AddrPort
}

// Owner is a node with backends of a port.
type Owner struct {
	Node   string
	Weight uint32 // the sum of the weights of its backends
}

// FrontendKind is the kind of address of a frontend.
type FrontendKind uint8

// The kinds of frontends.
const (
	ClusterIP FrontendKind = iota
	NodePort
	ExternalIP
	LoadBalancer

	healthCheck // the health check port of a Service; no frontend has this kind
)

// String returns the name of the kind as messages and answers spell it.
func (k FrontendKind) String() string {
	return [...]string{"clusterIP", "nodePort", "externalIP", "loadBalancerIP", "healthCheckNodePort"}[k]
}

// Frontend is an address, port and protocol that clients use. There are very many: the order of fields saves memory.
type Frontend struct {
	Kind FrontendKind
	Port uint16

	// Where connections go from pods on this node, from this node itself, and from all other clients. The Detector of the
	// Host recognizes pods; without one, Pods equals Others.
	Pods, Node, Others Action

	// Allow lists the client addresses that may connect if Restricted is true. Connections
	// of other clients are dropped if the frontend has backends. The prefixes are in the
	// order of the Service, none inside another. An empty list admits no client.
	Restricted bool
	Addr       netip.Addr // invalid for NodePort: any address of Host.NodePorts
	Allow      []netip.Prefix
}

// Action is how a new connection is treated.
type Action struct {
	Verdict    Verdict
	Pool       Pool // for Balance
	Masquerade bool // for Balance: with source NAT
}

// Key identifies a frontend. No two frontends of a table have the same.
type Key struct {
	Family   Family
	Protocol cluster.Protocol
	Port     uint16
	Addr     netip.Addr // invalid for NodePorts
}

// Key returns the key of a frontend of this port.
func (p *Port) Key(f *Frontend) Key { return Key{p.Family, p.Protocol, f.Port, f.Addr} }

// Find returns the value of the frontend with a destination: of one with its address, or else of the NodePort.
func Find[T any](all map[Key]T, protocol cluster.Protocol, to netip.AddrPort) (value T, found bool) {
	key := Key{FamilyOf(to.Addr()), protocol, to.Port(), to.Addr()}
	if value, found = all[key]; !found {
		key.Addr = netip.Addr{}
		value, found = all[key]
	}
	return value, found
}

// PortID identifies a Port among those of all Services. The sources leave out a Service port with
// the name and protocol of an earlier one, so no two have the same.
type PortID struct {
	Service  cluster.Name
	Name     string
	Protocol cluster.Protocol
	Family   Family
}

// ID returns the identity of a port of this Service.
func (p *Port) ID(service cluster.Name) PortID {
	return PortID{service, p.Name, p.Protocol, p.Family}
}

// Compare orders ports by Service, family, protocol and name.
func (id PortID) Compare(o PortID) int {
	return cmp.Or(id.Service.Compare(o.Service), cmp.Compare(id.Family, o.Family),
		cmp.Compare(id.Protocol, o.Protocol), cmp.Compare(id.Name, o.Name))
}

// String returns "default/web:http tcp IPv4".
func (id PortID) String() string {
	service := id.Service.String()
	if id.Name != "" {
		service += ":" + id.Name
	}
	return fmt.Sprintf("%s %s %s", service, id.Protocol, id.Family)
}

// Verdict says whether a connection is balanced, refused or dropped.
type Verdict uint8

// The verdicts.
const (
	Balance Verdict = iota
	Reject          // ICMP port unreachable
	Drop            // no reply
)

// Pool is one of the lists of backends of a Port.
type Pool uint8

// The pools.
const (
	Cluster Pool = iota
	Local
)

// String returns "cluster" or "local".
func (p Pool) String() string { return [...]string{"cluster", "local"}[p] }

// Backends returns the backends in a pool.
func (p *Port) Backends(pool Pool) []netip.AddrPort {
	if pool == Local {
		return p.Local
	}
	return p.Cluster
}

// Weight returns the weight of a backend, for planes that use weights. With weight 0 it gets no new connections.
func (p *Port) Weight(backend netip.AddrPort) uint16 {
	if w, has := p.Weights[backend]; has {
		return w
	}
	return 1
}

// ByClient reports whether a hash of the client's address chooses the backend, for planes that have that. Session
// affinity comes before it.
func (p *Port) ByClient() bool { return p.Affinity == 0 && p.Method() == Hash }

// Host is the policy of the whole node.
type Host struct {
	Detector      Detector
	MasqueradeAll bool
	NodePorts     NodePorts
	Local         []netip.Addr // the addresses of this host, sorted; nil unless Options.ListLocal
	Primary       []netip.Addr // the first address of the Node in each family, which connections of this host have

	// ServiceCIDRs are sorted, none inside another. Connections to an address in them that no Service has are dropped.
	ServiceCIDRs []netip.Prefix
}

// Detector says how to recognize pods on this node. Without a rule for a family no client of it counts as a pod.
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
	All4, All6 bool         // every local address except loopback
	All127     bool         // with All4: every address in 127.0.0.0/8 as well
	Loopback6  bool         // ::1 as well, by sockets: the kernel sends no packet from it to another host
	Addrs      []netip.Addr // further addresses; sorted
}

// All reports whether every local address of the family serves NodePorts.
func (n NodePorts) All(f Family) bool {
	if f == IPv4 {
		return n.All4
	}
	return n.All6
}

// Serve reports whether rules serve NodePorts on an address of this node.
func (n NodePorts) Serve(a netip.Addr) bool { return n.implied(a) || slices.Contains(n.Addrs, a) }

// ServeAny reports whether NodePorts are served on any address of a family.
func (n NodePorts) ServeAny(f Family) bool { return n.All(f) || f.In(n.Addrs) }

// Of returns the addresses of the family in Addrs.
func (n NodePorts) Of(f Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool { return FamilyOf(a) != f })
}

// Listen returns the addresses at which sockets listen for all NodePorts of the family: the unspecified one if every
// address serves them.
func (n NodePorts) Listen(f Family) []netip.Addr {
	if n.All(f) {
		return []netip.Addr{f.Unspecified()}
	}
	return n.Of(f)
}

// Loopback4 reports whether NodePorts are served on addresses in 127.0.0.0/8.
func (n NodePorts) Loopback4() bool {
	return n.All127 || slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() && a.IsLoopback() })
}

// Table is the desired state. Each Compile changes it in place, but replaces the Services in it and never changes one.
type Table struct {
	Host     Host
	Services map[cluster.Name]*Service
}

// Change lists the differences that one Compile made in a Table.
type Change struct {
	Table   *Table
	Touched []Touch
	OldHost *Host // nil: Host is as before

	// Underway has the Services whose change is not completely written yet, as the kernel holds them after this Change;
	// nil for a Service that the kernel does not hold.
	Underway map[cluster.Name]*Service
}

// InKernel returns a Service as the kernel holds it once the Change is applied.
func (c *Change) InKernel(name cluster.Name) *Service {
	if svc, ok := c.Underway[name]; ok {
		return svc
	}
	return c.Table.Services[name]
}

// Each calls fn with each Service that may have other rules: those that changed, or all if the Host has.
func (c *Change) Each(fn func(name cluster.Name, old, now *Service)) {
	for _, t := range c.Touched {
		fn(t.Name, t.Old, t.New)
	}
	if c.OldHost == nil {
		return
	}
	touched := map[cluster.Name]bool{}
	for _, t := range c.Touched {
		touched[t.Name] = true
	}
	for _, name := range c.Table.Order() {
		if svc := c.Table.Services[name]; !touched[name] {
			fn(name, svc, svc)
		}
	}
}

// Touch is one Service before and after a change. Old is nil for a new Service, New for a deleted one.
type Touch struct {
	Name     cluster.Name
	Old, New *Service
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool { return len(c.Touched) == 0 && c.OldHost == nil }
