package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// View is what an Answer is computed from: a View of the proxy's loop, and the
// node.
type View struct {
	proxy.View

	Node  *cluster.Node // of this host; nil: unknown
	Local []netip.Addr  // addresses of this host
	Plane plane.Facts
}

// mostCases is how many cases an Answer has at most. For an address of a node
// without a port there may be thousands.
const mostCases = 32

// asker answers one question.
type asker struct {
	view     View
	question Question
	omitted  int // cases
}

// found is a frontend and what it belongs to.
type found struct {
	service *route.Service
	port    *route.Port
	front   *route.Front

	unserved bool // a NodePort at an address that serves none, but refuses or drops there too
}

// Ask answers a question. Its cost is linear in the number of Services.
func Ask(v View, q Question) Answer {
	a := &asker{view: v, question: q}
	out := Answer{Source: q.From(), Destination: q.To(), Plane: v.Plane.Name}
	if q.Destination.IsValid() {
		out.Cases = a.at(q.Destination)
	} else {
		a.byName(&out)
	}
	if n := len(out.Cases) - mostCases; n > 0 {
		out.Cases, a.omitted = out.Cases[:mostCases], a.omitted+n
	}
	if n := a.omitted; n > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d more are not shown: name a port", n))
	}
	out.Notes = append(out.Notes, a.remarks(out.Cases)...)
	return out
}

// remarks are the problems with the Service of the question and the Services of
// the cases, and why the kernel may not do yet what the cases say.
func (a *asker) remarks(cases []Case) []string {
	about := []cluster.Name{a.question.Service}
	for _, c := range cases {
		if c.Front != nil {
			about = append(about, c.Front.name)
		}
	}
	slices.SortFunc(about, cluster.Name.Compare)
	var problems, refused []string
	for _, name := range slices.Compact(about) {
		problems = append(problems, text.Strings(a.view.Routes.Problems(name))...)
		if err := a.view.Refused[name]; err != nil {
			refused = append(refused, fmt.Sprintf("the kernel does not do so, it does not take the rules of %s: %v", name, err))
		}
	}
	all := slices.Concat(problems, refused)
	switch {
	case a.view.Err != nil:
		return append(all, "the kernel may not do so yet, it refuses to: "+strings.ReplaceAll(a.view.Err.Error(), "\n", "; "))
	case !a.view.Started:
		return append(all, "the kernel may not do so yet: nothing was written since the start")
	}
	return all
}

// at answers for an address: where connections to its frontends go, or what
// happens to connections to an address without a matching frontend.
func (a *asker) at(to netip.Addr) []Case {
	n := a.survey(to)
	if len(n.matching) == 0 {
		return []Case{a.nowhere(to, n)}
	}
	shown := n.matching[:min(len(n.matching), mostCases)]
	a.omitted += len(n.matching) - len(shown)
	var cases []Case
	for _, f := range shown {
		cases = append(cases, a.enter(to, f))
	}
	return cases
}

// survey is what all Services have at an address.
type survey struct {
	matching   []found // frontends that the question asks for, NodePorts last
	others     []found // frontends of other ports at the address
	nodePorts  []found // NodePorts of the port in the question, which the address does not serve
	clusterIP  bool
	backend    string // the Service that it is a backend of; empty: of none
	isNodePort bool   // the address serves NodePorts
}

func (a *asker) survey(to netip.Addr) survey {
	n := survey{isNodePort: a.servesNodePorts(to)}
	for svc := range a.view.Routes.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Family == route.FamilyOf(to) {
				a.surveyPort(&n, to, found{service: svc, port: p})
			}
		}
	}
	for _, all := range [][]found{n.matching, n.others, n.nodePorts} {
		slices.SortFunc(all, found.compare)
	}
	return n
}

func (a *asker) surveyPort(n *survey, to netip.Addr, f found) {
	isBackend := func(b netip.AddrPort) bool {
		return b.Addr() == to && (a.question.Port == 0 || a.question.Port == b.Port())
	}
	if slices.ContainsFunc(f.port.Cluster, isBackend) || slices.ContainsFunc(f.port.Local, isBackend) {
		n.backend = cmp.Or(n.backend, f.service.Name.String())
	}
	for i := range f.port.Fronts {
		f.front = &f.port.Fronts[i]
		asked := a.asks(f)
		switch {
		case f.front.Kind == route.NodePort && asked && n.isNodePort:
			n.matching = append(n.matching, f)
		case f.front.Kind == route.NodePort && asked && a.endsUnserved(to, f.front):
			n.matching = append(n.matching, found{service: f.service, port: f.port, front: f.front, unserved: true})
		case f.front.Kind == route.NodePort && asked && a.question.Port != 0:
			n.nodePorts = append(n.nodePorts, f)
		case f.front.Kind == route.NodePort || f.front.Addr != to:
		case asked:
			n.matching = append(n.matching, f)
		default:
			n.others = append(n.others, f)
		}
		n.clusterIP = n.clusterIP || f.front.Kind == route.ClusterIP && f.front.Addr == to
	}
}

// asks reports whether the question is about the port and protocol of a frontend.
func (a *asker) asks(f found) bool {
	q := a.question
	return (q.Port == 0 || q.Port == f.front.Port) && (q.Protocol == 0 || q.Protocol == f.port.Protocol)
}

// compare sorts addresses before NodePorts, in the order in which rules match, and
// by port.
func (f found) compare(g found) int {
	byNodePort := func(f found) int {
		if f.front.Kind == route.NodePort {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(byNodePort(f), byNodePort(g)),
		cmp.Compare(f.front.Port, g.front.Port),
		cmp.Compare(f.port.Protocol, g.port.Protocol),
		f.service.Name.Compare(g.service.Name),
	)
}

// String formats a port as "80/tcp (http)".
func (f found) String() string {
	s := fmt.Sprintf("%d/%s", f.front.Port, f.port.Protocol)
	if f.port.Name != "" {
		s += " (" + f.port.Name + ")"
	}
	return s
}

func (a *asker) servesNodePorts(to netip.Addr) bool {
	n := a.view.Routes.Host.NodePorts
	if slices.Contains(n.Addrs, to) {
		return true
	}
	if to.IsLoopback() {
		return n.All127 && to.Is4()
	}
	return n.All(route.FamilyOf(to)) && a.isLocal(to)
}

// endsUnserved reports whether a NodePort refuses or drops connections at an
// address that serves no NodePorts.
func (a *asker) endsUnserved(to netip.Addr, f *route.Front) bool {
	return a.view.Plane.Ends.Unserved && f.Others.Verdict != route.Balance && a.isLocal(to)
}

// ends reports whether the plane refuses or drops the packets of a client if there
// is no backend. Otherwise no rule matches them.
func (a *asker) ends(to netip.Addr, f *route.Front, c client) bool {
	at, passes := a.view.Plane.Ends.External, plane.Passing
	if f.Kind == route.ClusterIP {
		at = a.view.Plane.Ends.ClusterIPs
	}
	switch local := a.isLocal(to); {
	case c.own && local:
		passes = plane.Leaving | plane.Arriving
	case c.own:
		passes = plane.Leaving
	case local:
		passes = plane.Arriving
	}
	return at&passes != 0
}

// enter answers for connections that reach a frontend.
func (a *asker) enter(to netip.Addr, f found) Case {
	c := a.client(to)
	out := Case{
		Destination: target(to, f.front.Port, f.port.Protocol),
		Front:       frontOf(f),
		Client:      c.Client,
	}
	w := f.way(c)
	if a.view.Plane.Checks(f.front, w) {
		out.Access = &Access{Allowed: inside(f.front.Allow, c.addr), Ranges: text.Strings(f.front.Allow)}
	}
	switch {
	case out.Access != nil && !out.Access.Allowed:
		out.Verdict, out.Why = Dropped, "the source ranges of the Service do not let the client in"
	case w.Verdict == route.Balance:
		a.balance(&out, f, c)
	default:
		a.end(&out, to, f, c)
	}
	a.path(&out, f, w)
	return out
}

func frontOf(f found) *Front {
	out := &Front{name: f.service.Name, Service: f.service.Name.String(), Port: f.port.Name, Kind: f.front.Kind.String()}
	out.Address = fmt.Sprintf("%d/%s", f.front.Port, f.port.Protocol)
	if f.front.Kind != route.NodePort {
		out.Address = target(f.front.Addr, f.front.Port, f.port.Protocol)
	}
	return out
}

// way returns where the connections of a client go. At an address that serves no
// NodePorts all clients are treated alike.
func (f found) way(c client) route.Way {
	if f.unserved {
		return f.front.Others
	}
	return c.way(f.front)
}

// end answers for connections without a backend.
func (a *asker) end(out *Case, to netip.Addr, f found, c client) {
	if f.way(c).Verdict == route.Reject {
		a.refuse(out, f)
	} else {
		a.drop(out, f)
	}
	switch {
	case f.unserved:
		out.Why += fmt.Sprintf("; %s serves no nodePorts, but one without a backend is like this at every address of this node", to)
	case a.ends(to, f.front, c):
	case a.isLocal(to):
		out.Verdict = Untouched
		out.Why += fmt.Sprintf("; but that is not looked at when packets arrive at %s, which this node has for its own", to)
	default:
		out.Verdict = Untouched
		out.Why += fmt.Sprintf("; but what this node itself sends to a %s is not refused then, and goes where its routes lead", f.front.Kind)
	}
}

// refuse answers for a Service without usable endpoints.
func (a *asker) refuse(out *Case, f found) {
	choices := a.view.Routes.Explain(f.service.Name, f.port, route.Cluster)
	out.LeftOut = leftOut(choices)
	out.Verdict, out.Why = Refused, "the Service has no endpoints"
	if n := len(out.LeftOut); n > 0 {
		out.Why = fmt.Sprintf("none of the Service's %s takes traffic", text.Count(n, "endpoint"))
	}
	if f.front.Restricted && out.Access == nil {
		out.Why += "; source ranges are not asked then"
	}
}

// drop answers for a Service whose usable endpoints are all on other nodes.
func (a *asker) drop(out *Case, f found) {
	choices := a.view.Routes.Explain(f.service.Name, f.port, route.Local)
	out.LeftOut = leftOut(choices)
	out.Verdict = Dropped
	out.Why = fmt.Sprintf("%s is Local, and no endpoint on this node takes traffic while others do", policyField(f.front))
}

func leftOut(choices []route.Choice) []LeftOut {
	var out []LeftOut
	for _, c := range choices {
		if c.Reason == route.Chosen {
			continue
		}
		l := LeftOut{Address: c.Backend.String(), Reason: c.Reason.String(), Node: c.Endpoint.Node, Slice: c.Slice.Name.Name}
		if c.Backend.Port() == 0 {
			l.Address = c.Backend.Addr().String()
		}
		out = append(out, l)
	}
	return out
}

func policyField(f *route.Front) string {
	if f.Kind == route.ClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}
