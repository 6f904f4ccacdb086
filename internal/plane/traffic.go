package plane

import (
	"maps"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Signal names a number that planes know of a port of a Service.
type Signal string

// The signals. All except Live are counters that only grow, but begin at 0 again when the plane replaces its object.
const (
	Connections Signal = "connections" // and UDP flows, since the start
	Live        Signal = "live"        // connections and UDP flows at this moment
	Received    Signal = "receivedBytes"
	Sent        Signal = "sentBytes"
	Failures    Signal = "failures"   // connections that no backend accepted, if the plane does not know which of these:
	Unanswered  Signal = "unanswered" // see Failed
	Refusals    Signal = "refused"
)

// Failed counts attempts to connect to a backend that failed. Both only grow.
type Failed struct {
	Unanswered uint64 // the first packet had no answer within a second, so that the client sent it again
	Refused    uint64 // the answer was a reset
}

// Traffic is what a plane knows of a port of a Service; it has no Signal that the plane does not know.
type Traffic map[Signal]uint64

// Add adds other numbers to these.
func (t Traffic) Add(other Traffic) {
	for signal, n := range other {
		t[signal] += n
	}
}

// Since returns how much each counter has grown from an earlier Traffic. One that is less than before began again.
func (t Traffic) Since(before Traffic) Traffic {
	grown := maps.Clone(t)
	delete(grown, Live)
	for signal, n := range grown {
		if was := before[signal]; was <= n {
			grown[signal] = n - was
		}
	}
	return grown
}

// Tracking says what conntrack has of connections to Services.
type Tracking uint8

// What conntrack has of them.
const (
	Untracked    Tracking = iota // nothing
	Translated                   // the destination is a frontend, and answers come from a backend
	Untranslated                 // the same, or the destination is a backend from the start
	Relayed                      // two connections: one to a frontend, answered by this process, and one to a backend
)

// Target is where connections go.
type Target struct {
	Protocol cluster.Protocol
	Backend  netip.AddrPort
}

// Counted is what a plane counts, by port. Ports and backends without connections may be missing.
type Counted map[route.PortID]PortTraffic

// PortTraffic is what a plane counts of a port: of all of it, and of each backend, also of former ones.
type PortTraffic struct {
	Traffic

	Backends map[netip.AddrPort]BackendTraffic // nil: the plane does not know
}

// BackendTraffic is what a plane counts of a backend of a port. There are ten thousands of them. Live is not known if
// the Traffic of the port does not have it.
type BackendTraffic struct{ Connections, Live uint64 }
