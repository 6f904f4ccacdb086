package kernelspace

import (
	"cmp"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// key names an entry. Its class says which fields it has.
type key struct {
	class    class
	addr     netip.Addr   // of an endpoint; of a load balancer: invalid for all addresses of this host
	family   route.Family // of a load balancer
	protocol uint8        // of a load balancer
	port     uint16       // of a load balancer

	id string // of an object that a comparison found and that is deleted, whatever replaces it; empty otherwise
}

// class is a kind of objects in HNS.
type class uint8

const (
	source      class = iota // the endpoint of the source VIP
	remote                   // a remote endpoint; Services share it
	vip                      // the remote endpoint of a clusterIP in an overlay network; the ports of a Service share it
	clusterIP                // a load balancer, as all below
	nodePort                 //
	externalIP               //
	ingressIP                //
	healthCheck              // Services with the same address share it
)

// String returns the class of a load balancer as in the labels of metrics.
func (c class) String() string {
	return [...]string{"source", "remote", "vip", "clusterip", "nodeport", "externalip", "ingressip", "healthcheck"}[c]
}

// balancer reports whether an entry is a load balancer.
func (c class) balancer() bool { return c >= clusterIP }

// value is the value of a load balancer. Endpoints have none: their properties follow from the address and the network.
type value struct {
	target    uint16
	endpoints string // the addresses of the backends, sorted
	source    netip.Addr
	flags     hns.Flags
}

type (
	entry = ledger.Entry[key, value]
	step  = ledger.Step[key, value]
)

// The phases. Load balancers are removed first, as HNS has one for each address and port, and does not delete an
// endpoint in use. Endpoints come before the load balancers that refer to them.
const (
	balancersRemoved ledger.Phase = 1 + iota
	endpointsReplaced
	endpointsAdded
	balancersChanged
	balancersAdded
	endpointsRemoved
)

func (k key) handling() ledger.Handling {
	switch {
	case k.class.balancer():
		return ledger.Handling{
			Add: balancersAdded, Change: balancersChanged, Remove: balancersRemoved,
			Shared: k.class == healthCheck && k.id == "",
		}
	case k.id != "":
		return ledger.Handling{Remove: endpointsReplaced}
	}
	return ledger.Handling{
		Add: endpointsAdded, Remove: endpointsRemoved, Target: true, Checked: true, Shared: k.class != source,
	}
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.class, o.class), k.addr.Compare(o.addr), cmp.Compare(k.family, o.family),
		cmp.Compare(k.protocol, o.protocol), cmp.Compare(k.port, o.port), cmp.Compare(k.id, o.id))
}

// place returns the address, protocol and port that a load balancer occupies, as a key without a class.
func (k key) place() key {
	return key{addr: k.addr, family: k.family, protocol: k.protocol, port: k.port}
}

// keyOf returns the key that deletes a load balancer which a comparison found. HNS does not store the class, so it is
// the probable one.
func keyOf(l hns.LoadBalancer) key {
	k := key{class: clusterIP, addr: l.VIP, family: route.IPv4, protocol: l.Protocol, port: l.Port, id: l.ID}
	switch {
	case !l.VIP.IsValid():
		k.class = nodePort
	case l.Flags.External:
		k.class = ingressIP
	}
	if l.Flags.IPv6 || l.VIP.Is6() {
		k.family = route.IPv6
	}
	return k
}
