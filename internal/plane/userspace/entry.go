package userspace

import (
	"cmp"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names an entry: the balancer of a port, or a socket of it.
type key struct {
	port route.PortID
	part part
	at   netip.AddrPort // of a frontendSocket
}

// part is an entry of a port.
type part uint8

// The parts of a port. With rules its pools have a socket each, so that rules choose the pool;
// without, it has one, whose address stays when the pool changes. With the addresses of Services each
// frontend has a socket, or several if it is a NodePort.
const (
	balancer part = iota
	clusterSocket
	localSocket
	frontendSocket
)

// socketOf returns the socket that balances to a pool.
func socketOf(p route.Pool) part { return clusterSocket + part(p) }

// String returns "default/web:http tcp IPv4 local".
func (k key) String() string {
	if k.part == frontendSocket {
		return k.port.String() + " " + k.at.String()
	}
	return k.port.String() + [...]string{"", " cluster", " local"}[k.part]
}

// value is the value of an entry: of a balancer, its target as text; of a socket, its address, and its
// pool or who may use it.
type value struct {
	target string
	at     netip.AddrPort
	pool   route.Pool // of a frontendSocket, that of most clients
	policy policy
}

type (
	entry = ledger.Entry[key, value]
	step  = ledger.Step[key, value]
)

// A balancer exists before its sockets are opened, and until they are closed.
const (
	balancerWritten ledger.Phase = 1 + iota
	socketOpened
	socketClosed
	balancerRemoved
)

func (k key) handling() ledger.Handling {
	if k.part == balancer {
		return ledger.Handling{Add: balancerWritten, Change: balancerWritten, Remove: balancerRemoved, Target: true}
	}
	return ledger.Handling{Add: socketOpened, Change: socketOpened, Remove: socketClosed}
}

func (k key) compare(o key) int {
	return cmp.Or(k.port.Compare(o.port), cmp.Compare(k.part, o.part), k.at.Compare(o.at))
}
