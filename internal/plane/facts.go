package plane

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Facts say what a plane does where planes differ, for explanations.
type Facts struct {
	Name        string
	OtherPort   Behaviour // to a clusterIP, at a port that its Service does not have
	Ping        Behaviour // ICMP echo to a clusterIP
	Unallocated Behaviour // to an address of a ServiceCIDR that no Service has
	Ranges      Ranges    // when source ranges are checked
	Ends        Ends      // where connections without a backend are refused or dropped
	Loopback    string    // the condition for NodePorts on loopback addresses; completes "only if"

	// Path names what the first packet of a connection passes, in its order: chains,
	// maps. Nil: the plane has no names for that.
	Path func(Passage) []string
}

// Behaviour is a verdict, the sentence that gives its reason, and the path to it if
// the plane has names for that.
type Behaviour struct {
	Verdict Verdict
	Why     string
	Path    []string
}

// Verdict is what becomes of a connection that is not balanced.
type Verdict string

// The verdicts.
const (
	Refuse    Verdict = "refused"   // an error is returned to the client at once
	Drop      Verdict = "dropped"   // the client waits until it gives up
	Untouched Verdict = "untouched" // as if there were no proxy
)

// Ranges says when the source ranges of a Service are checked.
type Ranges uint8

// The orders in which packets are checked.
const (
	RangesFirst       Ranges = iota // before anything else
	RangesWhileServed               // while the Service has endpoints; otherwise all clients are refused
)

// Ends are where a plane refuses or drops connections that lead to no backend.
// Elsewhere it leaves them alone.
type Ends struct {
	ClusterIPs Hooks // those to a clusterIP
	External   Hooks // those to all other addresses, NodePorts among them

	// Unserved means that NodePorts that refuse or drop do so at every address of
	// this node, also where no NodePorts are served.
	Unserved bool
}

// Hooks are the points that packets pass on their way through a node.
type Hooks uint8

// The hooks. A packet of this node to itself passes two of them.
const (
	Arriving Hooks = 1 << iota // at an address of this node
	Passing                    // from and to other hosts
	Leaving                    // sent by this node itself

	Everywhere = Arriving | Passing | Leaving
)

// Passage is a connection that takes a way into a Service, up to the choice of a
// backend or beyond it.
type Passage struct {
	Service *route.Service
	Port    int            // of Service.Ports
	Front   int            // of the Fronts of that
	Inside  bool           // the client is a pod on this node, or this node itself
	Way     route.Way      // of such a client
	KeptOut bool           // source ranges do not admit the client, whatever Way says
	Backend netip.AddrPort // the one chosen; not valid: up to the choice

	// Unserved: it is to a NodePort, at an address that serves none (Ends.Unserved).
	Unserved bool
}

// Checks reports whether source ranges decide on clients that would go a way.
func (f Facts) Checks(front *route.Front, w route.Way) bool {
	return front.Restricted && (f.Ranges == RangesFirst || w.Verdict != route.Reject)
}
