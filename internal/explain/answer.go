package explain

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Answer is what becomes of the connections a Question asks about. The names
// of its fields in JSON do not change.
type Answer struct {
	Source      string `json:"source"`      // as asked
	Destination string `json:"destination"` // as asked
	Plane       string `json:"plane"`       // whose behaviour it is where planes differ
	Cases       []Case `json:"cases,omitempty"`

	// Unanswered says why there is no case, such as that there is no such
	// Service.
	Unanswered string   `json:"unanswered,omitempty"`
	Notes      []string `json:"notes,omitempty"` // what else a person should know
}

// Case is what becomes of connections to one address, port and protocol.
type Case struct {
	Destination string  `json:"destination"`     // "10.96.0.10:53/udp"
	Front       *Front  `json:"front,omitempty"` // whose it is; nil: nobody's
	Client      Client  `json:"client"`
	Verdict     Verdict `json:"verdict"`
	Why         string  `json:"why"` // of the verdict

	// Path is what the first packet passes in the kernel, in their order and in
	// the words of the mechanism, up to the choice of a backend. Nil: the plane
	// does not tell.
	Path []string `json:"path,omitempty"`

	Access    *Access    `json:"access,omitempty"`    // nil: source ranges are not asked
	Policy    *Policy    `json:"policy,omitempty"`    // nil: not balanced
	SourceNAT *SourceNAT `json:"sourceNAT,omitempty"` // nil: not balanced

	// AffinitySeconds, if not 0: a client stays with its backend until it made
	// no new connection for so long.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`

	Backends []Backend `json:"backends,omitempty"`
	LeftOut  []LeftOut `json:"leftOut,omitempty"` // all other endpoints of the Service
}

// Verdict is what becomes of a connection.
type Verdict string

// The verdicts.
const (
	Balanced  Verdict = "balanced"
	Refused   Verdict = "refused"   // ICMP port unreachable: the client is told at once
	Dropped   Verdict = "dropped"   // silence: the client waits until it gives up
	Untouched Verdict = "untouched" // as if there were no proxy
)

// Front is the way into a Service that a connection takes.
type Front struct {
	Service string `json:"service"` // "default/web"
	Port    string `json:"port"`    // its name, empty if it has none
	Kind    string `json:"kind"`    // "clusterIP", "nodePort", "externalIP", "loadBalancerIP"
	Address string `json:"address"` // "10.96.0.10:53/udp"; "30080/tcp" for a nodePort

	name cluster.Name // of the Service
}

// Client is who connects, as policy sees it.
type Client struct {
	Address  string `json:"address"` // empty: not known
	Via      string `json:"via,omitempty"`
	CountsAs Who    `json:"countsAs"`
	Why      string `json:"why"`
}

// Who is what a client counts as.
type Who string

// The kinds of clients.
const (
	Pod     Who = "pod"     // as the local traffic detector sees it
	Node    Who = "node"    // this node itself
	Outside Who = "outside" // anybody else
)

// Access is what source ranges say of a client.
type Access struct {
	Allowed bool     `json:"allowed"`
	Ranges  []string `json:"ranges"`
}

// Policy is which endpoints are considered.
type Policy struct {
	Name string `json:"name"` // "Cluster", "Local", "ShortCircuit"
	Why  string `json:"why"`
}

// SourceNAT is whether backends see an address of this node in place of the
// client's; for Backends with Hairpin they do in any case.
type SourceNAT struct {
	Applied bool   `json:"applied"`
	Why     string `json:"why"`
}

// Backend is one a connection may reach.
type Backend struct {
	Address     string `json:"address"`
	Chance      string `json:"chance"`            // "1/3"
	Hairpin     bool   `json:"hairpin,omitempty"` // it is the client itself, and sees this node's address
	Terminating bool   `json:"terminating,omitempty"`
	Node        string `json:"node,omitempty"` // empty: not known
	Slice       string `json:"slice,omitempty"`

	Path []string `json:"path,omitempty"` // what follows on that of the case
}

// LeftOut is an endpoint that is not a backend.
type LeftOut struct {
	Address string `json:"address"`
	Reason  string `json:"reason"`
	Node    string `json:"node,omitempty"`
	Slice   string `json:"slice"`
}

// View is what an answer is taken from.
type View struct {
	Routes *route.Snapshot // what was decided for this node
	Node   *cluster.Node   // the own one; nil: not known
	Local  []netip.Addr    // addresses of this host
	Plane  plane.Facts
}

// seconds rounds up: a memory is never said to be shorter than it is.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
