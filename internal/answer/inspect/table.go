package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Rows returns a row for each port and IP family.
func (s Service) Rows() []text.Row {
	ports := s.Ports
	if len(ports) == 0 {
		ports = []Port{{}}
	}
	rows := make([]text.Row, len(ports))
	for i, p := range ports {
		a := p.addresses()
		rows[i] = text.Row{Mark: s.mark(p), Cells: []text.Cell{
			{"NAMESPACE", s.Namespace},
			{"NAME", s.Name},
			{"PORT", portText(p.Name, p.Port, p.Protocol)},
			{"CLUSTER-IP", strings.Join(a.cluster, ",")},
			{"EXTERNAL", strings.Join(a.external, ",")},
			{"NODE-PORT", a.nodePort},
			{"POLICY", p.policy()},
			{"BACKENDS", p.backends()},
			{"STATE", stateText(s.State, cmp.Or(s.Reason, p.problem()))},
		}, Wide: []text.Cell{
			{"FAMILY", p.Family},
			{"AFFINITY", p.affinity()},
			{"CLIENTS", a.clients},
			{"SCHEDULER", schedulerText(p.Scheduler, p.SchedulerNote)},
			{"CONNECTIONS", cell(s.signals(p), plane.Connections, decimal)},
			{"LIVE", cell(s.signals(p), plane.Live, decimal)},
		}}
	}
	return rows
}

// signals returns what is known of a port, of both families.
func (s Service) signals(p Port) plane.Traffic {
	for _, t := range s.Traffic {
		if t.PortName == p.Name && t.Protocol == p.Protocol {
			return t.Signals
		}
	}
	return nil
}

func (s Service) mark(p Port) text.Mark {
	switch {
	case s.Problem == "" || s.Reason == "" && p.problem() == "":
		return ""
	case s.State == NotProgrammed:
		return text.Bad
	}
	return text.Warning
}

// Rows returns a row. In modes that balance by weight, and in those that count connections, it has more columns.
func (b Backend) Rows() []text.Row {
	e := cmp.Or(b.Endpoint, &Endpoint{})
	at := b.Address.String()
	if b.Target != 0 {
		at = netip.AddrPortFrom(b.Address, b.Target).String()
	}
	cells := append(b.ServicePort.cells(), text.Cell{"BACKEND", at})
	return []text.Row{{Cells: slices.Concat(cells, b.Balancing.cells(), []text.Cell{
		{"POOLS", strings.Join(b.Pools, ",")},
		{"LEFT-OUT", cmp.Or(b.leftOut(), b.Standing)},
		{"STATE", stateText(b.State, b.Reason)},
	}), Wide: []text.Cell{{"NODE", e.Node}, {"CONDITIONS", e.conditions()}, {"ENDPOINTSLICE", e.Slice}}}}
}

func (p ServicePort) cells() []text.Cell {
	return []text.Cell{
		{"NAMESPACE", p.Namespace}, {"NAME", p.Service}, {"PORT", portText(p.PortName, p.Port, p.Protocol)},
	}
}

func (b *Balancing) cells() []text.Cell {
	if b == nil {
		return nil
	}
	weight, active, inactive := known(b.Weight), known(b.Active), known(b.Inactive)
	if b.Error != "" {
		weight, active, inactive = "?", "?", "?"
	}
	cells := []text.Cell{{"SCHEDULER", schedulerText(b.Scheduler, b.Note)}, {"WEIGHT", weight}}
	if b.Counted {
		cells = append(cells, text.Cell{"ACTIVE", active}, text.Cell{"INACTIVE", inactive})
	}
	return cells
}

func schedulerText(name, note string) string {
	return plane.Scheduling{Name: name, Note: note}.String()
}

// known returns a number as text; empty: it is not known.
func known[T int | uint32](n *T) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// Rows returns a row.
func (n NodePort) Rows() []text.Row {
	return []text.Row{{Cells: []text.Cell{
		{"PORT", portText("", n.Port, n.Protocol)},
		{"FAMILY", n.Family},
		{"NAMESPACE", n.Namespace},
		{"NAME", n.Service},
		{"PORT-NAME", n.PortName},
		{"ADDRESSES", n.addresses()},
		{"POLICY", n.Others.To},
		{"BACKENDS", strconv.Itoa(n.Backends)},
		{"STATE", stateText(n.State, n.Reason)},
	}, Wide: []text.Cell{
		{"FROM-PODS", n.Pods.String()}, {"FROM-NODE", n.Node.String()}, {"FROM-OTHERS", n.Others.String()},
	}}}
}

// Rows returns a row.
func (a Address) Rows() []text.Row {
	return []text.Row{{Cells: []text.Cell{
		{"NAMESPACE", a.Namespace},
		{"NAME", a.Service},
		{"PORT", a.port()},
		{"LISTENS-AT", a.Address.String()},
	}, Wide: []text.Cell{{"POOL", a.Pool}, {"CONNECTIONS", strconv.FormatInt(a.Open, 10)}}}}
}

func (a Address) port() string { return strings.TrimPrefix(a.Port+"/"+a.Protocol, "/") }

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
func (w Action) String() string {
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
	var out addresses
	if len(p.Frontends) > 0 {
		out.clients = "all"
	}
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
	case len(p.Frontends) == 0:
		return ""
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
