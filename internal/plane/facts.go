package plane

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Facts describe how a plane behaves where planes differ. Explanations use them.
type Facts struct {
	Name        string
	OtherPort   Behaviour // to a clusterIP, at a port that its Service does not have
	Ping        Behaviour // ICMP echo to a clusterIP
	Unallocated Behaviour // to an address of a ServiceCIDR that no Service has
	Ranges      Ranges    // when source ranges are checked
	Ends        Ends      // where connections without a backend are refused or dropped
	Loopback    string    // the condition for NodePorts on loopback addresses; completes "only if"
	Loopback6   string    // the same for ::1; empty: there is no other

	// Weights means that the weights of backends count.
	Weights bool

	// Unweighted are the schedulers with which only the weight 0 counts.
	Unweighted []string

	// Ejects means that backends can leave to which connections fail. It needs the table of connections of Linux.
	Ejects bool

	// Direct means that nodes can pass connections on to each other (route.Options.Direct).
	Direct bool

	// Lacking are the methods that the plane does not have. It chooses at random in place of them.
	Lacking []route.Method

	// AnyScheduler means that the kernel may have schedulers that route.MethodOf does not know.
	AnyScheduler bool

	// SchedulerName returns the name of the scheduler of a port, where a plane has another one than route.Method has. Nil:
	// it has that of the Method, and chooses at random if there is session affinity.
	SchedulerName func(*route.Port) string

	// Shares returns the probabilities of backends, as far as they are known without what happens at this moment, such
	// as how many connections are open. Nil: they follow from the weights.
	Shares func(Connection) Shares

	// Proxied means that connections end in the process, which makes others to the backends: these
	// have an address of this node as their source always.
	Proxied bool

	// Sockets is why connections reach only the sockets of the process (Opened.Sockets), and no address of a Service, as a
	// sentence. Empty: they reach these addresses.
	Sockets string

	// OwnVIPs means that this node has the addresses of Services itself: its connections to
	// one have that address as their source, and get source NAT always.
	OwnVIPs bool

	// Alike means that the plane does not distinguish clients: all those of a clusterIP have the Way of
	// pods, and all those of other addresses the Way of clients outside of the cluster.
	Alike bool

	// NoBackend is why connections without a backend are neither refused nor dropped, as a clause. Empty: they
	// are, as Ends says.
	NoBackend string

	// Without returns what happens to connections to a port that the plane does not serve; the zero value: it
	// serves it. Nil: it serves all.
	Without func(*route.Port) Behaviour

	// SourceNAT returns whether backends see another source than the client, and why, for a connection that is
	// balanced. Nil: it follows from the Way.
	SourceNAT func(Connection) (applied bool, why string)

	// Affinity is what happens to a client with session affinity, as a sentence. Empty: it stays with its backend
	// for the timeout of the Service.
	Affinity string

	// Path returns the names of the chains, maps and so on that the first packet of a
	// connection passes, in order. Nil: the plane has no such names.
	Path func(Connection) []string
}

// Hashes reports whether ports that choose by the client (route.Port.ByClient) have the tables and hashes of package
// slots.
func (f Facts) Hashes() bool {
	return f.Weights && !f.AnyScheduler && !slices.Contains(f.Lacking, route.Hash)
}

// Scheduling is how the backends of a port are chosen.
type Scheduling struct {
	Name string // of the scheduler; empty: the plane has none
	Note string // how it differs from the one that the Service or the configuration names; empty: it does not
}

// Scheduling returns how the plane chooses the backends of a port.
func (f Facts) Scheduling(p *route.Port) Scheduling {
	m, note := p.Method(), ""
	switch {
	case !f.Weights:
		return Scheduling{}
	case f.AnyScheduler:
		return Scheduling{Name: f.SchedulerName(p)}
	case slices.Contains(f.Lacking, m):
		m, note = route.Random, "mode "+f.Name+" has no "+p.Scheduler
	case slices.Contains([]string{"dh", "fo", "ovf", "lblc", "lblcr"}, p.Scheduler):
		note = "nearest to " + p.Scheduler
	}
	if f.SchedulerName != nil {
		return Scheduling{f.SchedulerName(p), note}
	}
	if m != route.Random && p.Affinity > 0 {
		m, note = route.Random, "session affinity comes before "+p.Scheduler
	}
	return Scheduling{m.String(), note}
}

// String returns the name with the note, such as "random (nearest to dh)".
func (s Scheduling) String() string {
	if s.Note == "" {
		return s.Name
	}
	return s.Name + " (" + s.Note + ")"
}

// Shares are how probable it is that each backend gets a connection.
type Shares struct {
	Of  map[netip.AddrPort]float64 // empty: it follows from the weights
	How string                     // completes "balanced over 3 backends, "
}

// Behaviour is a verdict, its reason as a sentence, and the path of the packet, if the plane has names for it.
type Behaviour struct {
	Verdict Verdict
	Why     string
	Path    []string
}

// Verdict is what happens to a connection that reaches no backend.
type Verdict string

// The verdicts.
const (
	Refuse    Verdict = "refused"   // the client receives an error at once
	Drop      Verdict = "dropped"   // the client waits until its timeout
	Untouched Verdict = "untouched" // as if there were no proxy
)

// Ranges is the point at which the source ranges of a Service are checked.
type Ranges uint8

// The points of the check.
const (
	RangesFirst       Ranges = iota // before anything else
	RangesWhileServed               // while the Service has endpoints; otherwise all clients are refused
	RangesNever                     // the mechanism cannot check them
)

// Ends are the hooks at which a plane refuses or drops connections without a backend. At
// other hooks it does not change them.
type Ends struct {
	ClusterIPs Hooks // for connections to a clusterIP
	External   Hooks // for connections to all other addresses, including NodePorts

	// Unserved means that a NodePort without a backend refuses or drops connections at
	// every address of this node, also at those that serve no NodePorts.
	Unserved bool
}

// Hooks are the points that packets pass on their way through a node.
type Hooks uint8

// The hooks. A packet from this node to itself passes two of them.
const (
	Arriving Hooks = 1 << iota // at an address of this node
	Passing                    // from and to other hosts
	Leaving                    // sent by this node itself

	Everywhere = Arriving | Passing | Leaving
)

// Connection describes a connection through a Service: up to the choice of a backend, or to a certain backend.
type Connection struct {
	Service  *route.Service
	Port     int            // index in Service.Ports
	Frontend int            // index in the Frontends of the port
	Inside   bool           // the client is a pod on this node, or this node itself
	Node     bool           // the client is this node itself
	Way      route.Action   // of the client
	KeptOut  bool           // source ranges do not admit the client, whatever Way is
	Backend  netip.AddrPort // the one chosen; invalid: up to the choice

	Client, To netip.Addr      // of the connection; invalid: not known
	Detector   *route.Detector // recognizes pods; nil: not known

	// Unserved: its destination is a NodePort at an address that serves none (Ends.Unserved).
	Unserved bool
}

// Checks reports whether the plane checks source ranges for clients with this Way.
func (f Facts) Checks(frontend *route.Frontend, w route.Action) bool {
	return frontend.Restricted && f.Ranges != RangesNever && (f.Ranges == RangesFirst || w.Verdict != route.Reject)
}
