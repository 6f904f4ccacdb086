package inspect

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Width says how much a table shows.
type Width int

// The widths.
const (
	Narrow Width = iota
	Wide         // everything that fits into words
)

// Table writes things in columns, a line or more for each. Those that are only
// in wide tables come last.
type Table[T any] struct {
	out   *tabwriter.Writer
	width Width
	lines func(t *Table[T], v T)
}

// Add adds a thing. Nothing is written before Flush, which knows how wide the
// columns are.
func (t *Table[T]) Add(v T) { t.lines(t, v) }

// Flush writes the table.
func (t *Table[T]) Flush() error { return t.out.Flush() }

// heading is the first line of a table, in two parts.
type heading struct{ narrow, wide []string }

func newTable[T any](w io.Writer, width Width, head heading, lines func(t *Table[T], v T)) *Table[T] {
	t := &Table[T]{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), width, lines}
	t.line(head.narrow, head.wide...)
	return t
}

// line writes a line; the tabwriter tells errors when flushed.
func (t *Table[T]) line(cells []string, wide ...string) {
	if t.width == Wide {
		cells = append(cells, wide...)
	}
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.out, "\t")
		}
		fmt.Fprint(t.out, orElse(text.Line(c), "-"))
	}
	fmt.Fprintln(t.out)
}

// ServiceTable has a line for each port and IP family of a Service.
func ServiceTable(w io.Writer, width Width) *Table[Service] {
	head := heading{
		[]string{"NAMESPACE", "NAME", "PORT", "CLUSTER-IP", "EXTERNAL", "NODE-PORT", "POLICY", "BACKENDS", "STATE"},
		[]string{"FAMILY", "AFFINITY", "CLIENTS"},
	}
	return newTable(w, width, head, func(t *Table[Service], s Service) {
		if len(s.Ports) == 0 {
			t.line([]string{s.Namespace, s.Name, "", "", "", "", "", "", s.state()}, "", "", "")
		}
		for _, p := range s.Ports {
			t.line([]string{
				s.Namespace, s.Name, portText(p.Name, p.Port, p.Protocol),
				p.addresses("clusterIP"), p.addresses("externalIP", "loadBalancerIP"), p.nodePort(),
				p.policy(), p.backends(), s.state(),
			}, p.Family, p.affinity(), p.clients())
		}
	})
}

// BackendTable has a line for each backend.
func BackendTable(w io.Writer, width Width) *Table[Backend] {
	head := heading{
		[]string{"NAMESPACE", "NAME", "PORT", "BACKEND", "POOLS", "LEFT-OUT", "STATE"},
		[]string{"NODE", "CONDITIONS", "ENDPOINTSLICE"},
	}
	return newTable(w, width, head, func(t *Table[Backend], b Backend) {
		e := b.Endpoint
		if e == nil {
			e = &Endpoint{}
		}
		t.line([]string{
			b.Namespace, b.Service, portText(b.PortName, b.Port, b.Protocol),
			b.at(), strings.Join(b.Pools, ","), b.leftOut(), stateText(b.State, b.Reason),
		}, e.Node, e.conditions(), e.Slice)
	})
}

// NodePortTable has a line for each node port and IP family.
func NodePortTable(w io.Writer, width Width) *Table[NodePort] {
	head := heading{
		[]string{"PORT", "FAMILY", "NAMESPACE", "NAME", "PORT-NAME", "ADDRESSES", "POLICY", "BACKENDS", "STATE"},
		[]string{"FROM-PODS", "FROM-NODE", "FROM-OTHERS"},
	}
	return newTable(w, width, head, func(t *Table[NodePort], n NodePort) {
		t.line([]string{
			fmt.Sprintf("%d/%s", n.Port, n.Protocol), n.Family, n.Namespace, n.Service, n.PortName,
			n.addresses(), n.Others.To, strconv.Itoa(n.Backends), stateText(n.State, n.Reason),
		}, n.Pods.String(), n.Node.String(), n.Others.String())
	})
}

// portText writes a port as "http:80/tcp".
func portText(name string, number uint16, protocol string) string {
	text := protocol
	if number != 0 {
		text = fmt.Sprintf("%d/%s", number, protocol)
	}
	if name == "" {
		return text
	}
	return name + ":" + text
}

func (s Service) state() string { return stateText(s.State, s.Reason) }

func stateText(p Programming, reason string) string {
	if reason == "" {
		return string(p)
	}
	return string(p) + ": " + reason
}

// String returns where to, and whether with this node's address as source.
func (w Way) String() string {
	if w.Masquerade {
		return w.To + " masqueraded"
	}
	return w.To
}

func (p Port) addresses(kinds ...string) string {
	var words []string
	for _, f := range p.Fronts {
		for _, k := range kinds {
			if f.Kind == k {
				words = append(words, f.Address.String())
			}
		}
	}
	return strings.Join(words, ",")
}

func (p Port) nodePort() string {
	for _, f := range p.Fronts {
		if !f.Address.IsValid() {
			return strconv.Itoa(int(f.Port))
		}
	}
	return ""
}

// policy says where connections of clients other than pods and this node go.
func (p Port) policy() string {
	var internal, external string
	for _, f := range p.Fronts {
		if f.Kind == "clusterIP" {
			internal = f.Others.To
		} else {
			external = f.Others.To
		}
	}
	switch {
	case internal == external || external == "":
		return internal
	case internal == "":
		return "external " + external
	}
	return "internal " + internal + ", external " + external
}

// backends says how many there are in the pools in use.
func (p Port) backends() string {
	switch {
	case p.Local == 0:
		return strconv.Itoa(p.Cluster)
	case p.Cluster == 0:
		return fmt.Sprintf("%d local", p.Local)
	}
	return fmt.Sprintf("%d, %d local", p.Cluster, p.Local)
}

func (p Port) affinity() string {
	if p.Affinity == 0 {
		return ""
	}
	return "client, " + short(time.Duration(p.Affinity))
}

// clients are those that load balancer addresses let in.
func (p Port) clients() string {
	for _, f := range p.Fronts {
		if f.Restricted {
			return orElse(join(f.Allow, netip.Prefix.String), "nobody")
		}
	}
	return "all"
}

func (b Backend) at() string {
	if b.Target == 0 {
		return b.Address.String()
	}
	return netip.AddrPortFrom(b.Address, b.Target).String()
}

// leftOut says why it is not in a pool; once, if that is so for all.
func (b Backend) leftOut() string {
	cluster, local := b.LeftOut["cluster"], b.LeftOut["local"]
	switch {
	case local == "" || local == cluster:
		return cluster
	case cluster == "":
		return "local: " + local
	}
	return "cluster: " + cluster + "; local: " + local
}

func (e *Endpoint) conditions() string {
	var words []string
	for _, c := range []struct {
		is   bool
		word string
	}{{e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}} {
		if c.is {
			words = append(words, c.word)
		}
	}
	return strings.Join(words, ",")
}

func (n NodePort) addresses() string {
	listed := join(n.Addresses, netip.Addr.String)
	switch {
	case n.Every && n.Loopback:
		return "all"
	case n.Every && listed != "":
		return "all and " + listed
	case n.Every:
		return "all but loopback"
	}
	return orElse(listed, "none")
}

func join[T any](list []T, text func(T) string) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = text(v)
	}
	return strings.Join(words, ",")
}
