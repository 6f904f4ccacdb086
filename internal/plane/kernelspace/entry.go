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

	id string // of an unknown load balancer
}

// class is a kind of objects in HNS.
type class uint8

const (
	source   class = iota // the endpoint of the source VIP
	remote                // a remote endpoint; Services share it
	frontend              // a load balancer
	unknown               // a load balancer that this plane would not write
)

// value is the value of a load balancer; other entries have none.
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

// The phases. A load balancer refers to endpoints. One that goes makes room for another one
// at the same address, and changes make room for further ones with the port of the backends.
const (
	endpointsAdded ledger.Phase = 1 + iota
	balancersRemoved
	balancersChanged
	balancersAdded
	endpointsRemoved
)

func layout() ledger.Layout[key] { return ledger.Layout[key]{Kind: key.kind, Order: key.compare} }

func (k key) kind() ledger.Kind {
	switch k.class {
	case source:
		return ledger.Kind{Add: endpointsAdded, Change: endpointsAdded, Remove: endpointsRemoved, Target: true}
	case remote:
		return ledger.Kind{Add: endpointsAdded, Change: endpointsAdded, Remove: endpointsRemoved, Target: true, Shared: true}
	default:
		return ledger.Kind{Add: balancersAdded, Change: balancersChanged, Remove: balancersRemoved}
	}
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.class, o.class), k.addr.Compare(o.addr), cmp.Compare(k.family, o.family),
		cmp.Compare(k.protocol, o.protocol), cmp.Compare(k.port, o.port), cmp.Compare(k.target, o.target), cmp.Compare(k.id, o.id))
}

// first returns the key of the first load balancer at the same address and port.
func (k key) first() key {
	k.target = 0
	return k
}
