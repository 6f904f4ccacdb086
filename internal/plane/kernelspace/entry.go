package kernelspace

import (
	"cmp"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names an entry. Its class says which fields it has.
type key struct {
	class    class
	addr     netip.Addr   // of an endpoint; of a load balancer: invalid for all addresses of this host
	family   route.Family // of a load balancer
	protocol uint8        // of a load balancer
	port     uint16       // of a load balancer

	// target is 0 for the first load balancer of an address and port, otherwise the port of the
	// backends. So the port of the first one can change in place.
	target uint16

	id string // of an unknown load balancer, or of a remote endpoint whose address a container of this host has
}

// class is a kind of objects in HNS.
type class uint8

const (
	source      class = iota // the endpoint of the source VIP
	remote                   // a remote endpoint; Services share it
	vip                      // the remote endpoint of a clusterIP in an overlay network; the ports of a Service share it
	frontend                 // a load balancer
	healthCheck              // a load balancer for health checks; Services with the same address share it
	nodePort                 // a load balancer of a NodePort
	unknown                  // a further load balancer with the address and port of others
)

// balancer reports whether an entry is a load balancer.
func (c class) balancer() bool { return c >= frontend }

// value is the value of an entry: of a load balancer, or of a remote endpoint, which has a provider only.
type value struct {
	target    uint16
	endpoints string // the addresses of the backends, sorted
	source    netip.Addr
	flags     hns.Flags
	other     bool // HNS has properties that this plane does not write; never of a wanted one
	kind      kind // what the load balancer is for; HNS does not store it

	provider netip.Addr // the node of a remote endpoint in an overlay network
}

// kind is the kind of address of a load balancer, as in the labels of metrics.
type kind string

// The kinds.
const (
	ofClusterIP   kind = "clusterip"
	ofNodePort    kind = "nodeport"
	ofExternalIP  kind = "externalip"
	ofIngressIP   kind = "ingressip"
	ofHealthCheck kind = "healthcheck"
)

// class returns the class of the load balancers of a kind.
func (k kind) class() class {
	switch k {
	case ofHealthCheck:
		return healthCheck
	case ofNodePort:
		return nodePort
	case ofClusterIP, ofExternalIP, ofIngressIP:
	}
	return frontend
}

// same reports whether HNS stores two values alike.
func (v value) same(o value) bool {
	v.kind = o.kind
	return v == o
}

type (
	entry = ledger.Entry[key, value]
	step  = ledger.Step[key, value]
)

// The phases. Endpoints come before the load balancers that refer to them. Changes come before additions, as they can free an address and
// port for another load balancer. Removals come last, so that the replacement of a load balancer exists before it is deleted; order makes
// the exceptions.
const (
	endpointsAdded ledger.Phase = 1 + iota
	balancersChanged
	balancersAdded
	balancersRemoved
	endpointsRemoved
)

func layout() ledger.Layout[key] { return ledger.Layout[key]{Kind: key.kind, Order: key.compare} }

func (k key) kind() ledger.Kind {
	switch k.class {
	case source:
		return ledger.Kind{Add: endpointsAdded, Change: endpointsAdded, Remove: endpointsRemoved, Target: true, Checked: true}
	case remote, vip:
		return ledger.Kind{Add: endpointsAdded, Change: endpointsAdded, Remove: endpointsRemoved, Target: true, Checked: true, Shared: true}
	case healthCheck:
		return ledger.Kind{Add: balancersAdded, Change: balancersChanged, Remove: balancersRemoved, Shared: true}
	default:
		return ledger.Kind{Add: balancersAdded, Change: balancersChanged, Remove: balancersRemoved}
	}
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.class, o.class), k.addr.Compare(o.addr), cmp.Compare(k.family, o.family),
		cmp.Compare(k.protocol, o.protocol), cmp.Compare(k.port, o.port), cmp.Compare(k.target, o.target), cmp.Compare(k.id, o.id))
}

// place returns the address, protocol and port of a load balancer.
func (k key) place() key {
	return key{addr: k.addr, family: k.family, protocol: k.protocol, port: k.port}
}

// first returns the key of the first load balancer at the same address and port.
func (k key) first() key {
	k.target = 0
	return k
}

// stored returns the key under which the state has an entry: HNS does not know which load balancers
// are for health checks or NodePorts.
func (k key) stored() key {
	if k.class == healthCheck || k.class == nodePort {
		k.class = frontend
	}
	return k
}
