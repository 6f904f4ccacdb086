// Package cluster holds the part of a Kubernetes cluster that a service proxy needs: Services, their EndpointSlices and
// the own Node, as plain values, and the Store that collects them. It imports the standard library only. A value handed
// to the Store is never changed afterwards; a change is a new value.
package cluster

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Name identifies a namespaced object.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Protocol is a transport protocol, by its IANA number.
type Protocol uint8

// The protocols a Service port may have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// DNSPort is the port of DNS servers, of UDP and TCP.
const DNSPort = 53

// String returns the name as Kubernetes prints it, in lower case.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Type is spec.type of a Service. ExternalName Services are never programmed and carry Service.Ignored instead.
type Type uint8

// The Service types that have a virtual address.
const (
	ClusterIP Type = iota
	NodePort
	LoadBalancer
)

// Service has the fields of a Service that a proxy needs. Addresses are canonical and free of duplicates.
type Service struct {
	Name    Name
	Created time.Time // metadata.creationTimestamp: the older wins a contested address

	// Ignored is the reason why this Service is not programmed ("headless", "ExternalName", "label
	// service.kubernetes.io/service-proxy-name=foo", "no clusterIP"). Empty: it is programmed.
	Ignored string

	Labels string // metadata.labels, for queries: "app=web,tier=front", sorted; a map would take more memory

	// The small fields are adjacent to save memory: there may be very many Services.
	Type                Type
	InternalLocal       bool   // spec.internalTrafficPolicy: Local
	ExternalLocal       bool   // spec.externalTrafficPolicy: Local, as written; route decides where it counts
	Restricted          bool   // spec.loadBalancerSourceRanges has entries
	PreserveDestination bool   // annotation preserve-destination, for data planes that can
	Direct              bool   // nodes pass connections of clients outside on to the node of a backend, in planes that can
	HealthCheckNodePort uint16 // 0: none

	ClusterIPs      []netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr // status.loadBalancer.ingress with ipMode VIP
	Ports           []ServicePort

	// SourceRanges are the usable ranges if Restricted. A family without any range is then closed to all clients.
	SourceRanges []netip.Prefix

	Affinity time.Duration // 0: none; spec.sessionAffinityConfig.clientIP.timeoutSeconds

	// Scheduler names the algorithm that chooses endpoints, in planes that have several. Empty: the one of the node.
	Scheduler string

	// SlowStart is how long the share of a new endpoint grows, in data planes that do that. 0: it has all of it at once.
	SlowStart time.Duration

	// ProxyHeader means that TCP endpoints get the address of each client in a header of the PROXY protocol, version 2,
	// in data planes that connect to endpoints in place of clients.
	ProxyHeader bool

	// Ejection says which failures make an endpoint leave; the zero value: none.
	Ejection Ejection

	// Weights are the weights of endpoints, by their address or else by their node, for data planes whose algorithms use
	// them. All other endpoints have the weight of their Slice.
	Weights map[string]uint16
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string // may be empty
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// Slice is one EndpointSlice (KEP-752) of a Service.
type Slice struct {
	Name      Name
	Service   Name
	Ports     []SlicePort
	Endpoints []Endpoint
	Trigger   time.Time // of the change to endpoints that this slice came from; zero: unknown
	Weight    *uint16   // of endpoints to which the Service gives none; nil: 1
	Pods      []Pod     // behind the endpoints; from an API server only those of this node
}

// Pod is an address of a pod in the namespace of a Slice.
type Pod struct {
	Name string
	Addr netip.Addr
}

// SlicePort is one port of an EndpointSlice; it belongs to the Service port of the same name and protocol.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is one endpoint of an EndpointSlice.
type Endpoint struct {
	Addr        netip.Addr
	Node        string // empty: unknown
	Ready       bool
	Serving     bool
	Terminating bool
	Hints       *Hints // nil: none
}

// Hints are the topology hints of an endpoint.
type Hints struct {
	Zones []string
	Nodes []string
}

// Node is the Node Sluice runs on.
type Node struct {
	Name      string         `json:"name"`
	Zone      string         `json:"zone,omitempty"`      // label topology.kubernetes.io/zone
	Addresses []netip.Addr   `json:"addresses,omitempty"` // node IPs: the first of each family is the primary one
	PodCIDRs  []netip.Prefix `json:"-"`

	// Leaving is set while the Node is being deleted, or the cluster autoscaler is about to remove it (taint
	// ToBeDeletedByClusterAutoscaler). Load balancers should send nothing new here; the rules stay as they are.
	Leaving bool `json:"leaving,omitempty"`
}

// Compare orders names by namespace, then name.
func (n Name) Compare(m Name) int {
	return cmp.Or(strings.Compare(n.Namespace, m.Namespace), strings.Compare(n.Name, m.Name))
}

func (s *Service) equal(t *Service) bool {
	return s.Name == t.Name && s.Created.Equal(t.Created) && s.Ignored == t.Ignored && s.Type == t.Type &&
		s.Labels == t.Labels &&
		slices.Equal(s.ClusterIPs, t.ClusterIPs) && slices.Equal(s.ExternalIPs, t.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, t.LoadBalancerIPs) && slices.Equal(s.Ports, t.Ports) &&
		s.InternalLocal == t.InternalLocal && s.ExternalLocal == t.ExternalLocal &&
		s.Restricted == t.Restricted && slices.Equal(s.SourceRanges, t.SourceRanges) &&
		s.Affinity == t.Affinity && s.Scheduler == t.Scheduler && s.SlowStart == t.SlowStart &&
		s.ProxyHeader == t.ProxyHeader && s.PreserveDestination == t.PreserveDestination &&
		s.Direct == t.Direct &&
		maps.Equal(s.Weights, t.Weights) && s.Ejection == t.Ejection && s.HealthCheckNodePort == t.HealthCheckNodePort
}

func (s *Slice) equal(t *Slice) bool {
	return s.Name == t.Name && s.Service == t.Service && slices.Equal(s.Ports, t.Ports) &&
		slices.EqualFunc(s.Endpoints, t.Endpoints, Endpoint.equal) && slices.Equal(s.Pods, t.Pods) &&
		(s.Weight == nil) == (t.Weight == nil) && (s.Weight == nil || *s.Weight == *t.Weight)
}

func (e Endpoint) equal(f Endpoint) bool {
	return e.Addr == f.Addr && e.Node == f.Node && e.Ready == f.Ready && e.Serving == f.Serving &&
		e.Terminating == f.Terminating && e.Hints.equal(f.Hints)
}

func (h *Hints) equal(g *Hints) bool {
	if h == nil || g == nil {
		return h == g
	}
	return slices.Equal(h.Zones, g.Zones) && slices.Equal(h.Nodes, g.Nodes)
}

func (n *Node) equal(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.Name == m.Name && n.Zone == m.Zone &&
		slices.Equal(n.Addresses, m.Addresses) && slices.Equal(n.PodCIDRs, m.PodCIDRs)
}
