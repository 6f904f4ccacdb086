// Package hns reads and writes the networks, endpoints and load balancers of the Host Networking Service of
// Windows (HNS, API version 2). Its types exist on every operating system, Service on Windows only. All IDs
// that it returns are in lower case.
package hns

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// ErrNotFound means that an object does not exist.
var ErrNotFound = errors.New("HNS has no such object (ELEMENT_NOT_FOUND)")

// The other errors that callers distinguish.
var (
	ErrNoNetwork      = fmt.Errorf("%w: the network does not exist", ErrNotFound)
	ErrPortExists     = errors.New("another load balancer has this address and port (HCN_E_PORT_ALREADY_EXISTS)")
	ErrNotImplemented = errors.New("this version of HNS cannot do it (E_NOTIMPL)")
	ErrInvalidIP      = errors.New("HNS does not accept an address (HCN_E_INVALID_IP)")
	ErrDenied         = errors.New("HNS denies access (E_ACCESSDENIED)")
	ErrNoService      = errors.New("the Host Networking Service (HNS) is not installed, not running, or too old")
)

// listAttempts is how often a list is read at most.
const listAttempts = 5

// complete calls a function that lists objects until none of them was deleted meanwhile: the library lists the IDs,
// reads one object after the other, and returns nothing if one is gone.
func complete[T any](list func() ([]T, error)) (all []T, err error) {
	for range listAttempts {
		if all, err = list(); !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return all, err
}

// ID returns an ID in lower case, as this package returns all IDs. HNS may spell the ID of an object in its own
// document with another case than in load balancers that refer to it.
func ID(text string) string { return strings.ToLower(text) }

// NetworkType is the driver of a network.
type NetworkType string

// The types of networks that support load balancers.
const (
	L2Bridge NetworkType = "L2Bridge"
	L2Tunnel NetworkType = "L2Tunnel"
	Overlay  NetworkType = "Overlay"
)

// Is reports whether two types are the same, whatever the case: HNS is not consistent.
func (t NetworkType) Is(other NetworkType) bool { return strings.EqualFold(string(t), string(other)) }

// Network is a network of HNS. A network that is deleted and made again has another ID.
type Network struct {
	ID, Name string
	Type     NetworkType
	Remote   []RemoteSubnet // of an overlay network: the subnets of other nodes
}

// Canonical returns the network with the spelling of IDs of this package, and its subnets sorted, the smallest first:
// HNS does not promise an order.
func (n Network) Canonical() Network {
	n.ID, n.Remote = ID(n.ID), slices.Clone(n.Remote)
	slices.SortFunc(n.Remote, func(a, b RemoteSubnet) int {
		return cmp.Or(cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()),
			a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Provider.Compare(b.Provider))
	})
	return n
}

// RemoteSubnet is a subnet whose endpoints are on another node.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr
}

// Endpoint is an endpoint of HNS: an address in a network, of a container on this host, or of another host (Remote).
type Endpoint struct {
	ID, Name string
	Network  string // the ID of its network
	Addrs    []netip.Addr
	MAC      string     // as HNS spells it: 02-11-0A-B4-01-07
	Provider netip.Addr // the node that has a remote endpoint of an overlay network; may be invalid
	Remote   bool
}

// Canonical returns the endpoint with the spelling of IDs of this package.
func (e Endpoint) Canonical() Endpoint {
	e.ID, e.Network = ID(e.ID), ID(e.Network)
	return e
}

// MAC returns the MAC address that kube-proxy gives the remote endpoint at an address: 02-11 and an IPv4 address, or
// the last four bytes of an IPv6 address, the last one first.
func MAC(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is6() {
		slices.Reverse(b)
	}
	return fmt.Sprintf("02-11-%02X-%02X-%02X-%02X", b[0], b[1], b[2], b[3])
}

// Flags are the settings of a load balancer.
type Flags struct {
	DSR         bool // replies go to the client directly
	IPv6        bool
	External    bool // the address is not one of the cluster
	LocalRouted bool // the host itself can use the address
	UseMux      bool // for clients that a load balancer outside sends here
	PreserveDIP bool // backends see the address of the Service as the destination
	Affinity    bool // all connections of a client address go to the same backend
}

// LoadBalancer is a load balancer with one port.
type LoadBalancer struct {
	ID        string
	VIP       netip.Addr // invalid: the addresses of this host
	Protocol  uint8      // the number of IANA
	Port      uint16     // of clients
	Target    uint16     // of the backends
	Endpoints []string   // the IDs of the backends
	SourceVIP netip.Addr // may be invalid
	Flags     Flags

	// Other means that HNS returned properties that this package does not write, such as a second port or address.
	Other bool
}

// Canonical returns the load balancer with the spelling of IDs of this package.
func (l LoadBalancer) Canonical() LoadBalancer {
	ids := make([]string, len(l.Endpoints))
	for i, id := range l.Endpoints {
		ids[i] = ID(id)
	}
	l.ID, l.Endpoints = ID(l.ID), ids
	return l
}

// Same reports whether two load balancers are the same except for their IDs. The order of endpoints does not matter.
func (l LoadBalancer) Same(o LoadBalancer) bool {
	same := slices.Equal(slices.Sorted(slices.Values(l.Endpoints)), slices.Sorted(slices.Values(o.Endpoints)))
	l.ID, l.Endpoints, o.ID, o.Endpoints = "", nil, "", nil
	return same && reflect.DeepEqual(l, o)
}

// String prints a load balancer without its ID.
func (l LoadBalancer) String() string {
	return fmt.Sprintf("%s protocol %d port %d -> %d, source %s, %+v",
		l.VIP, l.Protocol, l.Port, l.Target, l.SourceVIP, l.Flags)
}

// Features are the features of a version of HNS.
type Features struct {
	V2              bool // API version 2
	RemoteSubnet    bool
	DSR             bool
	SessionAffinity bool
	DualStack       bool // IPv6 beside IPv4
	Modify          bool // load balancers can be changed in place
}
