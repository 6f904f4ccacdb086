package route

import (
	"net/netip"
	"slices"
)

// Options is the policy in the configuration. A Compiler never changes it.
type Options struct {
	NodeName      string   // empty: the name of Facts.Node
	Families      []Family // empty: both
	Detector      DetectorOptions
	MasqueradeAll bool
	NodePorts     NodePortOptions
	Primary       netip.Addr // if valid, the node's address in its family, in place of the addresses of the Node

	// ListLocal has the Host list the addresses of this host, so that each change of an address changes the Host.
	ListLocal bool

	// PreserveDestination means that the data plane can preserve the destination, for Services that request it.
	PreserveDestination bool

	// Direct means that nodes pass connections on to each other (Port.Owners), for Services that request it.
	Direct bool

	// Scheduler names the scheduler of Services that name none; empty: the plane has its own default.
	Scheduler string

	// Excess returns the size of a Service that is too large for the data plane, and the limit with its reason. Such a
	// Service is not programmed. The limit is empty if the Service fits; a nil Excess sets no limit.
	Excess func(*Service) (size, limit string)
	// Listeners are the TCP listeners of the proxy itself. A frontend that would hide one is left out.
	Listeners []Listener
}

// DetectorKind says how the proxy recognizes pods on this node.
type DetectorKind uint8

// The kinds of local traffic detectors.
const (
	NoDetector            DetectorKind = iota
	DetectClusterCIDR                  // source in DetectorOptions.CIDRs
	DetectNodeCIDR                     // source in the PodCIDRs of the own Node
	DetectBridge                       // arrives on the interface DetectorOptions.Interface
	DetectInterfacePrefix              // arrives on an interface whose name begins with it
)

// DetectorOptions choose the local traffic detector.
type DetectorOptions struct {
	Kind      DetectorKind
	CIDRs     []netip.Prefix // for DetectClusterCIDR
	Interface string         // for DetectBridge and DetectInterfacePrefix
}

// NodePortOptions are the entries of nodePortAddresses. The zero value serves all local addresses except loopback.
type NodePortOptions struct {
	CIDRs     []netip.Prefix
	Primary   bool // the node's own address of each family
	Localhost bool // loopback addresses
	All       bool // every local address, loopback as Loopback says
	Loopback  Loopback
}

// Loopback says when an address in 127.0.0.0/8 serves NodePorts. ::1 does only if an entry names it.
type Loopback uint8

// The rules for loopback addresses.
const (
	LoopbackNamed    Loopback = iota // if an entry names it: Localhost, or a CIDR in 127.0.0.0/8
	LoopbackIncluded                 // if any entry contains it: a wider CIDR as well; without entries, all of 127.0.0.0/8
	LoopbackNever
)

// families returns the enabled families, IPv4 first.
func (o Options) families() []Family {
	enabled := make([]Family, 0, 2)
	for _, f := range [...]Family{IPv4, IPv6} {
		if len(o.Families) == 0 || slices.Contains(o.Families, f) {
			enabled = append(enabled, f)
		}
	}
	return enabled
}
