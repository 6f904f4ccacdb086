package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Answer says where the connections of a Question go. The JSON names of its fields do not change.
type Answer struct {
	Source      string `json:"source"`      // of the Question
	Destination string `json:"destination"` // of the Question
	Plane       string `json:"plane"`       // the data plane, as planes differ in some cases
	Cases       []Case `json:"cases,omitempty"`

	// Unanswered is why there is no case, such as that the Service does not exist.
	Unanswered string   `json:"unanswered,omitempty"`
	Notes      []string `json:"notes,omitempty"` // further facts for people
}

// Case says where connections to one address, port and protocol go.
type Case struct {
	Destination string    `json:"destination"`        // "10.96.0.10:53/udp"
	Frontend    *Frontend `json:"frontend,omitempty"` // nil: the destination belongs to no Service
	Client      Client    `json:"client"`
	Verdict     Verdict   `json:"verdict"`
	Why         string    `json:"why"` // reason for the verdict

	// Path lists the chains, maps and so on up to the choice of a backend. Nil: the plane has no names for them.
	Path []string `json:"path,omitempty"`

	Access    *Access    `json:"access,omitempty"`    // nil: source ranges are not checked
	Policy    *Policy    `json:"policy,omitempty"`    // nil: not balanced
	SourceNAT *SourceNAT `json:"sourceNAT,omitempty"` // nil: not balanced

	// AffinitySeconds, if not 0, is how long after its last new connection a client stays with its backend.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`

	// Affinity says what session affinity does if its timeout has no effect in this plane.
	Affinity string `json:"affinity,omitempty"`

	Backends []Backend `json:"backends,omitempty"`
	LeftOut  []LeftOut `json:"leftOut,omitempty"` // all other endpoints of the Service
}

// Verdict is what happens to a connection.
type Verdict string

// The verdicts.
const (
	Balanced  Verdict = "balanced"
	Refused   Verdict = "refused"   // ICMP port unreachable: the client fails at once
	Dropped   Verdict = "dropped"   // no reply: the client waits until its time-out
	Untouched Verdict = "untouched" // as if there were no proxy
)

// Frontend is the frontend of a Service that a connection reaches.
type Frontend struct {
	Service string `json:"service"` // "default/web"
	Port    string `json:"port"`    // its name, empty if it has none
	Kind    string `json:"kind"`    // "clusterIP", "nodePort", "externalIP", "loadBalancerIP"
	Address string `json:"address"` // "10.96.0.10:53/udp"; "30080/tcp" for a nodePort

	name cluster.Name // of the Service
}

// Client is the source of a connection, as policy classifies it.
type Client struct {
	Address  string `json:"address"` // empty: not known
	Via      string `json:"via,omitempty"`
	CountsAs Who    `json:"countsAs"`
	Why      string `json:"why"`
}

// Who is the class of a client.
type Who string

// The classes of clients.
const (
	Pod     Who = "pod"     // according to the local traffic detector
	Node    Who = "node"    // this node itself
	Outside Who = "outside" // all other clients
)

// Access says whether source ranges admit a client.
type Access struct {
	Allowed bool     `json:"allowed"`
	Ranges  []string `json:"ranges"`
}

// Policy says which endpoints are eligible.
type Policy struct {
	Name string `json:"name"` // "Cluster", "Local", "ShortCircuit"
	Why  string `json:"why"`
}

// SourceNAT says whether backends see an address of this node as the source. Backends with Hairpin always do.
type SourceNAT struct {
	Applied bool   `json:"applied"`
	Why     string `json:"why"`
}

// Backend is a backend that a connection may reach.
type Backend struct {
	Address     string `json:"address"`
	Chance      string `json:"chance"`            // "1/3"
	Hairpin     bool   `json:"hairpin,omitempty"` // it is the client itself, so always with source NAT
	Terminating bool   `json:"terminating,omitempty"`
	Standing    string `json:"standing,omitempty"` // of a backend that comes back after connections to it failed
	Node        string `json:"node,omitempty"`     // empty: not known
	Slice       string `json:"slice,omitempty"`

	Path []string `json:"path,omitempty"` // continues the path of the case
}

// LeftOut is an endpoint that is not eligible.
type LeftOut struct {
	Address string `json:"address"`
	Reason  string `json:"reason"`
	Node    string `json:"node,omitempty"`
	Slice   string `json:"slice"`
}

// Print writes the answer.
func (a Answer) Print(out *text.Columns) {
	if a.Unanswered != "" {
		out.Printf("%s\n", text.Line(a.Unanswered))
	}
	for i, c := range a.Cases {
		if i > 0 {
			out.Printf("\n")
		}
		c.print(out, a.Source)
	}
	for i, n := range a.Notes {
		if i == 0 {
			out.Printf("\n")
		}
		out.Printf("Note: %s\n", text.Line(n))
	}
}

// Headline says in a line what happens to the connections of a source.
func (c Case) Headline(source string) string {
	words := map[Verdict]string{
		Balanced: "balanced " + c.Why, Refused: "refused at once", Dropped: "dropped without a reply",
		Untouched: "not changed by Sluice",
	}
	return fmt.Sprintf("%s to %s: %s", source, c.Destination, words[c.Verdict])
}

// Facts returns what is known of the case besides its headline and endpoints, as names and values.
func (c Case) Facts() (all []text.Cell) {
	add := func(name, value string) { all = append(all, text.Cell{name, value}) }
	if c.Verdict != Balanced {
		add("Why", c.Why)
	}
	if f := c.Frontend; f != nil {
		service := f.Service
		if f.Port != "" {
			service += ", port " + f.Port
		}
		add("Service", service)
		add("Reached by", f.Kind+" "+f.Address)
	}
	add("Client", c.Client.text())
	if c.Access != nil {
		add("Admitted", c.Access.text())
	}
	if c.Policy != nil {
		add("Policy", c.Policy.Why)
	}
	if c.SourceNAT != nil {
		add("Source NAT", yesNo(c.SourceNAT.Applied)+c.SourceNAT.Why)
	}
	add("Path", strings.Join(c.Path, " -> "))
	if c.AffinitySeconds > 0 {
		timeout := text.Duration(time.Duration(c.AffinitySeconds) * time.Second)
		add("Affinity", "a client stays with its backend until it made no new connection for "+timeout)
	}
	add("Affinity", c.Affinity)
	return slices.DeleteFunc(all, func(c text.Cell) bool { return c[1] == "" })
}

func (c Case) print(out *text.Columns, source string) {
	out.Printf("%s\n", c.Headline(source))
	out.Indent = "  "
	for _, fact := range c.Facts() {
		out.Field(fact[0], fact[1])
	}
	c.printBackends(out)
	c.printLeftOut(out)
}

func (c Case) printBackends(out *text.Columns) {
	if len(c.Backends) > 0 {
		out.Printf("  Backends:\n")
	}
	out.Indent = "    "
	for _, b := range c.Backends {
		cells := []string{b.Chance + " " + b.Address, b.Node, b.Slice}
		if len(b.Path) > 0 {
			cells = append(cells, "by "+strings.Join(b.Path, " -> "))
		}
		if remarks := b.Remarks(); len(remarks) > 0 {
			cells = append(cells, strings.Join(remarks, "; "))
		}
		out.Row(cells...)
	}
}

// Remarks returns what is special about the backend.
func (b Backend) Remarks() (all []string) {
	if b.Hairpin {
		all = append(all, "the client itself: always with source NAT, so that replies return through this node")
	}
	if b.Terminating {
		all = append(all, "terminating")
	}
	if b.Standing != "" {
		all = append(all, b.Standing)
	}
	return all
}

// OfFamily returns the endpoints that are left out for another reason than their IP family, and how many have the other
// family, which are half of all if a Service has both.
func (c Case) OfFamily() (leftOut []LeftOut, foreign int) {
	for _, e := range c.LeftOut {
		if e.Reason != route.WrongFamily.String() {
			leftOut = append(leftOut, e)
		}
	}
	return leftOut, len(c.LeftOut) - len(leftOut)
}

func (c Case) printLeftOut(out *text.Columns) {
	if len(c.LeftOut) > 0 {
		out.Printf("  Left out:\n")
	}
	leftOut, foreign := c.OfFamily()
	for _, e := range leftOut {
		out.Row(e.Address, e.Node, e.Slice, e.Reason)
	}
	if foreign > 0 {
		out.Printf("    %d %s\n", foreign, route.WrongFamily)
	}
}

func (c Client) text() string {
	switch {
	case c.CountsAs == Node && c.Address != "":
		return "this node, as " + c.Address
	case c.CountsAs == Node:
		return "this node"
	case c.CountsAs == Pod:
		return "a pod: " + c.Why
	}
	return "from outside: " + c.Why
}

func (a Access) text() string {
	if len(a.Ranges) == 0 {
		return yesNo(a.Allowed) + "the source ranges admit no client"
	}
	return yesNo(a.Allowed) + "the source ranges are " + strings.Join(a.Ranges, ", ")
}

func yesNo[B ~bool](b B) string {
	if b {
		return "yes: "
	}
	return "no: "
}
