package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// View is what an Answer is computed from: a View of the proxy's loop, and the node.
type View struct {
	proxy.View

	Node  *cluster.Node // of this host; nil: unknown
	Local []netip.Addr  // addresses of this host
	Plane plane.Facts

	Sockets []plane.Socket // those that are open, if the Plane has Sockets

	// Shares returns the probabilities of backends at this moment (plane.Opened); nil: they are those of Plane.
	Shares func(plane.Connection) plane.Shares
}

// mostCases is how many cases an Answer has at most. For an address of a node without a port there may be thousands.
const mostCases = 32

// asker answers one question.
type asker struct {
	view     View
	question Question
	sources  []netip.Addr // of the client; none: this node itself
	open     bool         // a frontend has source ranges, which the plane cannot check
	omitted  int          // frontends in question without a Case
}

// found is a frontend with its Service and port.
type found struct {
	service  *route.Service
	port     *route.Port
	frontend *route.Frontend

	unserved bool // a NodePort that refuses or drops connections at an address that serves none
	socket   bool // the frontend is a socket of the process, or a NodePort on ::1, where one listens
}

// Ask answers a question. Its cost is proportional to the number of Services.
func Ask(v View, q Question) Answer {
	a := &asker{view: v, question: q}
	out := Answer{Plane: v.Plane.Name}
	note, err := a.resolve()
	out.Source, out.Destination = a.question.From(), a.question.To()
	switch {
	case err != nil:
		out.Unanswered = err.Error()
		return out
	case q.Destination.IsValid():
		if out.Cases = a.at(q.Destination); len(out.Cases) == 0 {
			out.Unanswered = a.noPort()
		}
	default:
		a.byName(&out)
	}
	out.Notes = append(out.Notes, note...)
	shown := min(len(out.Cases), mostCases)
	if n := len(out.Cases) - shown + a.omitted; n > 0 {
		out.Cases = out.Cases[:shown]
		out.Notes = append(out.Notes, fmt.Sprintf("%d more results are not shown: add a port to the destination", n))
	}
	out.Notes = append(out.Notes, a.remarks(out.Cases)...)
	return out
}

// remarks returns the problems with the Services in question, and why the kernel may not hold the rules yet.
func (a *asker) remarks(cases []Case) []string {
	about := []cluster.Name{a.question.Service}
	for _, c := range cases {
		if c.Frontend != nil {
			about = append(about, c.Frontend.name)
		}
	}
	slices.SortFunc(about, cluster.Name.Compare)
	var problems, refused []string
	for _, name := range slices.Compact(about) {
		problems = append(problems, text.Strings(a.view.Routes.Problems(name))...)
		if err := a.view.Refused[name]; err != nil {
			refused = append(refused, fmt.Sprintf("not in force: the kernel rejects the rules of %s: %v", name, err))
		}
	}
	all := slices.Concat(problems, refused)
	if a.open {
		all = append(all, fmt.Sprintf("mode %s does not check source ranges: every client may connect", a.view.Plane.Name))
	}
	switch {
	case a.view.Err != nil:
		return append(all, "these rules may not be in the kernel yet: the last write failed: "+
			strings.ReplaceAll(a.view.Err.Error(), "\n", "; "))
	case !a.view.Started:
		return append(all, "these rules may not be in the kernel yet: Sluice has written nothing since it started")
	}
	return all
}

// at answers for an address: one case for each frontend in question, or one for an address without such a frontend,
// but none if the frontend was given by the name of its port.
func (a *asker) at(to netip.Addr) []Case {
	if a.view.Plane.Sockets != "" {
		return a.atSockets(to)
	}
	n := a.survey(to)
	if len(n.matching) == 0 {
		if a.question.PortName != "" {
			return nil
		}
		return []Case{a.nowhere(to, n)}
	}
	return a.enterEach(to, n.matching)
}

// enterEach answers for as many frontends as an Answer has, and counts the others: an address may have ten thousand
// NodePorts, each with very many endpoints.
func (a *asker) enterEach(to netip.Addr, all []found) (cases []Case) {
	some := all[:min(len(all), mostCases)]
	a.omitted += len(all) - len(some)
	for _, f := range some {
		cases = append(cases, a.enter(to, f))
	}
	return cases
}

// survey is the result of a search of all Services for an address.
type survey struct {
	matching   []found // frontends in question, NodePorts last
	others     []found // frontends of other ports at the address
	nodePorts  []found // NodePorts of the port in the question, which the address does not serve
	clusterIP  bool    // the address is a ClusterIP
	backend    string  // a Service that has the address as a backend; empty: none
	isNodePort bool    // the address serves NodePorts
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
	for i := range f.port.Frontends {
		f.frontend = &f.port.Frontends[i]
		asked := a.asks(f)
		f.socket = f.frontend.Kind == route.NodePort && to == netip.IPv6Loopback()
		served := n.isNodePort && (!f.socket || f.port.Protocol != cluster.SCTP)
		switch {
		case f.frontend.Kind == route.NodePort && asked && served:
			n.matching = append(n.matching, f)
		case f.frontend.Kind == route.NodePort && asked && a.endsUnserved(to, f.frontend):
			n.matching = append(n.matching, found{service: f.service, port: f.port, frontend: f.frontend, unserved: true})
		case f.frontend.Kind == route.NodePort && asked && a.question.Port != 0:
			n.nodePorts = append(n.nodePorts, f)
		case f.frontend.Kind == route.NodePort || f.frontend.Addr != to:
		case asked:
			n.matching = append(n.matching, f)
		default:
			n.others = append(n.others, f)
		}
		n.clusterIP = n.clusterIP || f.frontend.Kind == route.ClusterIP && f.frontend.Addr == to
	}
}

// asks reports whether the port and protocol of a frontend are those in question.
func (a *asker) asks(f found) bool {
	q := a.question
	return (q.Port == 0 || q.Port == f.frontend.Port) && (q.Protocol == 0 || q.Protocol == f.port.Protocol) &&
		(q.PortName == "" || q.PortName == f.port.Name)
}

// compare sorts addresses before NodePorts, in the order in which rules match, and by port.
func (f found) compare(g found) int {
	byNodePort := func(f found) int {
		if f.frontend.Kind == route.NodePort {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(byNodePort(f), byNodePort(g)),
		cmp.Compare(f.frontend.Port, g.frontend.Port),
		cmp.Compare(f.port.Protocol, g.port.Protocol),
		f.service.Name.Compare(g.service.Name),
	)
}

// String formats a port as "80/tcp (http)".
func (f found) String() string {
	s := fmt.Sprintf("%d/%s", f.frontend.Port, f.port.Protocol)
	if f.port.Name != "" {
		s += " (" + f.port.Name + ")"
	}
	return s
}

// endsUnserved reports whether a NodePort refuses or drops connections at an address that serves no NodePorts.
func (a *asker) endsUnserved(to netip.Addr, f *route.Frontend) bool {
	return a.view.Plane.Ends.Unserved && f.Others.Verdict != route.Balance && a.isLocal(to)
}

// ends reports whether the plane ends packets of a client without a backend, in place of leaving them alone.
func (a *asker) ends(to netip.Addr, f *route.Frontend, c client) bool {
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
	if c.own && len(a.sources) == 0 && a.ownVIP(f.frontend.Addr) {
		c.addr, c.Address = to, to.String()
	}
	out := Case{
		Destination: target(to, f.frontend.Port, f.port.Protocol),
		Frontend:    frontendOf(f),
		Client:      c.Client,
	}
	w := f.way(c)
	var without plane.Behaviour // of a plane that does not serve the port
	if a.view.Plane.Without != nil {
		without = a.view.Plane.Without(f.port)
	}
	unserved := w.Verdict == route.Balance && without.Verdict == plane.Refuse
	if unserved {
		w.Verdict = route.Reject
	}
	if a.view.Plane.Checks(f.frontend, w) {
		out.Access = &Access{Allowed: inside(f.frontend.Allow, c.addr), Ranges: text.Strings(f.frontend.Allow)}
	}
	p := a.connection(f, c, to)
	switch {
	case without.Verdict == plane.Untouched:
		out.Verdict, out.Why = Untouched, without.Why
	case out.Access != nil && !out.Access.Allowed:
		out.Verdict, out.Why = Dropped, "the client is not in the source ranges of the Service"
	case w.Verdict == route.Balance:
		a.balance(&out, f, c, p)
	case unserved:
		out.Verdict, out.Why = Refused, without.Why
		a.applies(&out, to, f, c)
	case w.Verdict == route.Reject:
		a.refuse(&out, f)
		a.applies(&out, to, f, c)
	default:
		a.drop(&out, f)
		a.applies(&out, to, f, c)
	}
	a.open = a.open || out.Verdict == Balanced && f.frontend.Restricted && a.view.Plane.Ranges == plane.RangesNever
	a.path(&out, f, p)
	return out
}

func frontendOf(f found) *Frontend {
	out := &Frontend{
		name: f.service.Name, Service: f.service.Name.String(), Port: f.port.Name, Kind: f.frontend.Kind.String(),
	}
	out.Address = fmt.Sprintf("%d/%s", f.frontend.Port, f.port.Protocol)
	if f.socket && f.frontend.Kind != route.NodePort {
		out.Kind = "socket"
	}
	if f.frontend.Kind != route.NodePort {
		out.Address = target(f.frontend.Addr, f.frontend.Port, f.port.Protocol)
	}
	return out
}

// way returns where the connections of a client go. An address that serves no NodePorts does not distinguish clients.
func (f found) way(c client) route.Action {
	if f.unserved {
		return f.frontend.Others
	}
	return c.way(f.frontend)
}

// applies adds where connections without a backend are neither refused nor dropped.
func (a *asker) applies(out *Case, to netip.Addr, f found, c client) {
	switch {
	case f.unserved:
		out.Why += fmt.Sprintf("; %s serves no nodePorts, "+
			"but a nodePort without a backend refuses or drops connections at every address of this node", to)
	case a.view.Plane.NoBackend != "":
		out.Verdict = Untouched
		out.Why += "; but " + a.view.Plane.NoBackend
	case a.ends(to, f.frontend, c):
	case a.isLocal(to):
		out.Verdict = Untouched
		out.Why += fmt.Sprintf("; but this rule is not applied to packets that arrive at %s, an address of this node", to)
	default:
		out.Verdict = Untouched
		out.Why += fmt.Sprintf("; but packets of this node itself to this %s are not refused then, "+
			"and follow the routing table", f.frontend.Kind)
	}
}

// refuse answers for a Service without usable endpoints.
func (a *asker) refuse(out *Case, f found) {
	choices := a.view.Routes.Explain(f.service.Name, f.port, route.Cluster)
	out.LeftOut = leftOut(choices, time.Now())
	out.Verdict, out.Why = Refused, "the Service has no endpoints"
	if n := len(out.LeftOut); n > 0 {
		out.Why = fmt.Sprintf("none of the Service's %s takes traffic", text.Count(n, "endpoint"))
	}
	if f.frontend.Restricted && out.Access == nil && a.view.Plane.Ranges != plane.RangesNever {
		out.Why += "; source ranges are not checked in this case"
	}
}

// drop answers for a Service whose usable endpoints are all on other nodes.
func (a *asker) drop(out *Case, f found) {
	choices := a.view.Routes.Explain(f.service.Name, f.port, route.Local)
	out.LeftOut = leftOut(choices, time.Now())
	out.Verdict = Dropped
	policy := policyField(f.frontend) + " is Local"
	if f.preserved() {
		policy = "the Service has the annotation preserve-destination"
	}
	out.Why = policy + ", and only endpoints on other nodes take traffic"
}

func leftOut(choices []route.Choice, now time.Time) []LeftOut {
	var out []LeftOut
	for _, c := range choices {
		if c.Reason == route.Chosen {
			continue
		}
		l := LeftOut{Address: c.Backend.String(), Reason: Reason(c, now), Node: c.Endpoint.Node, Slice: c.Slice.Name.Name}
		if c.Backend.Port() == 0 {
			l.Address = c.Backend.Addr().String()
		}
		out = append(out, l)
	}
	return out
}

// preserved reports whether connections stay on this node because they keep their destination.
func (f found) preserved() bool {
	k := f.frontend.Kind
	return f.port.PreserveDestination && (k == route.NodePort || k == route.LoadBalancer)
}

func policyField(f *route.Frontend) string {
	if f.Kind == route.ClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}
