package inspect

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Width says how many columns of a table are printed.
type Width int

// The widths.
const (
	Narrow Width = iota
	Wide         // all columns
)

// Table prints items in columns, each on one or more lines.
type Table[T any] struct {
	out    *text.Columns
	width  Width
	narrow int // number of columns that Narrow has
	rows   func(T) [][]string
	begin  func(first T) // prints the titles, if they depend on the first item
}

// Add adds an item, which Flush prints.
func (t *Table[T]) Add(item T) {
	t.titles(item)
	for _, row := range t.rows(item) {
		t.row(row...)
	}
}

// titles prints the titles, once.
func (t *Table[T]) titles(first T) {
	if t.begin != nil {
		t.begin(first)
		t.begin = nil
	}
}

func (t *Table[T]) row(cells ...string) {
	if t.width == Narrow {
		cells = cells[:t.narrow]
	}
	t.out.Row(cells...)
}

// Flush prints the table.
func (t *Table[T]) Flush() error {
	var none T
	t.titles(none)
	return t.out.Flush()
}

// ServiceTable returns a table with a line for each port and IP family of a
// Service.
func ServiceTable(w io.Writer, width Width) *Table[Service] {
	t := &Table[Service]{out: text.NewColumns(w), width: width, narrow: 9, rows: Service.rows}
	t.row("NAMESPACE", "NAME", "PORT", "CLUSTER-IP", "EXTERNAL", "NODE-PORT", "POLICY", "BACKENDS", "STATE",
		"FAMILY", "AFFINITY", "CLIENTS")
	return t
}

func (s Service) rows() [][]string {
	state := stateText(s.State, s.Reason)
	if len(s.Ports) == 0 {
		return [][]string{{s.Namespace, s.Name, "", "", "", "", "", "", state, "", "", ""}}
	}
	var rows [][]string
	for _, p := range s.Ports {
		a := p.addresses()
		rows = append(rows, []string{
			s.Namespace, s.Name, portText(p.Name, p.Port, p.Protocol), strings.Join(a.cluster, ","),
			strings.Join(a.external, ","), a.nodePort, p.policy(), p.backends(), state, p.Family, p.affinity(), a.clients,
		})
	}
	return rows
}

// BackendTable returns a table with a line for each backend. In modes whose kernel counts
// connections it has more columns.
func BackendTable(w io.Writer, width Width) *Table[Backend] {
	t := &Table[Backend]{out: text.NewColumns(w), width: width, narrow: 7, rows: Backend.rows}
	t.begin = func(first Backend) {
		titles := []string{"NAMESPACE", "NAME", "PORT", "BACKEND", "POOLS", "LEFT-OUT", "STATE", "NODE", "CONDITIONS", "ENDPOINTSLICE"}
		if first.Balancing != nil {
			titles = slices.Insert(titles, balancingAt, balancingColumns()...)
			t.narrow += len(balancingColumns())
		}
		t.row(titles...)
	}
	return t
}

// balancingAt is the number of columns before those of a Balancing.
const balancingAt = 4

func (b Backend) rows() [][]string {
	e := cmp.Or(b.Endpoint, &Endpoint{})
	at := b.Address.String()
	if b.Target != 0 {
		at = netip.AddrPortFrom(b.Address, b.Target).String()
	}
	cells := []string{
		b.Namespace, b.Service, portText(b.PortName, b.Port, b.Protocol), at, strings.Join(b.Pools, ","), b.leftOut(),
		stateText(b.State, b.Reason), e.Node, e.conditions(), e.Slice,
	}
	if b.Balancing != nil {
		cells = slices.Insert(cells, balancingAt, b.Balancing.cells()...)
	}
	return [][]string{cells}
}

// NodePortTable returns a table with a line for each node port and IP family.
func NodePortTable(w io.Writer, width Width) *Table[NodePort] {
	t := &Table[NodePort]{out: text.NewColumns(w), width: width, narrow: 9, rows: NodePort.rows}
	t.row("PORT", "FAMILY", "NAMESPACE", "NAME", "PORT-NAME", "ADDRESSES", "POLICY", "BACKENDS", "STATE",
		"FROM-PODS", "FROM-NODE", "FROM-OTHERS")
	return t
}

func (n NodePort) rows() [][]string {
	return [][]string{{
		portText("", n.Port, n.Protocol), n.Family, n.Namespace, n.Service, n.PortName, n.addresses(), n.Others.To,
		strconv.Itoa(n.Backends), stateText(n.State, n.Reason), n.Pods.String(), n.Node.String(), n.Others.String(),
	}}
}

// portText formats a port as "http:80/tcp".
func portText(name string, number uint16, protocol string) string {
	if number != 0 {
		protocol = fmt.Sprintf("%d/%s", number, protocol)
	}
	if name == "" {
		return protocol
	}
	return name + ":" + protocol
}

func stateText(p Programming, reason string) string {
	if reason == "" {
		return string(p)
	}
	return string(p) + ": " + reason
}

// String returns where the connection goes, and whether with source NAT.
func (w Way) String() string {
	if w.Masquerade {
		return w.To + " masqueraded"
	}
	return w.To
}

// addresses are the frontends of a port as columns.
type addresses struct {
	cluster, external []string
	nodePort          string
	clients           string // that may use load balancer addresses
}

func (p Port) addresses() addresses {
	out := addresses{clients: "all"}
	for _, f := range p.Frontends {
		switch f.Kind {
		case "clusterIP":
			out.cluster = append(out.cluster, f.Address.String())
		case "nodePort":
			out.nodePort = strconv.Itoa(int(f.Port))
		default:
			out.external = append(out.external, f.Address.String())
		}
		if f.Restricted {
			out.clients = cmp.Or(text.Join(f.Allow, ","), "nobody")
		}
	}
	return out
}

// policy returns where connections of clients other than pods and this node go.
func (p Port) policy() string {
	var internal, external string
	for _, f := range p.Frontends {
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

// backends returns how many backends the pools in use have.
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
	return "client, " + p.Affinity.String()
}

// leftOut returns why a backend is not in its pools, and one reason if both are equal.
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
	if e.Ready {
		words = append(words, "ready")
	}
	if e.Serving {
		words = append(words, "serving")
	}
	if e.Terminating {
		words = append(words, "terminating")
	}
	return strings.Join(words, ",")
}

func (n NodePort) addresses() string {
	listed := text.Join(n.Addresses, ",")
	switch {
	case n.Every && n.Loopback:
		return "all"
	case n.Every && listed != "":
		return "all and " + listed
	case n.Every:
		return "all but loopback"
	}
	return cmp.Or(listed, "none")
}
