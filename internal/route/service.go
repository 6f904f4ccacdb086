package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// view is the part of the node's state that the policy for Services depends on.
type view struct {
	families      []Family
	node, zone    string       // empty: unknown
	addrs         []netip.Addr // of the node
	detector      Detector
	masqueradeAll bool
	own           own
}

// viewOf takes the part of options and facts that Services depend on.
func viewOf(opt Options, facts *cluster.Facts, host Host) *view {
	v := &view{
		families:      opt.families(),
		node:          opt.NodeName,
		detector:      host.Detector,
		masqueradeAll: host.MasqueradeAll,
		own:           ownOf(opt, facts, host),
	}
	if facts.Node == nil {
		return v
	}
	v.zone, v.addrs = facts.Node.Zone, facts.Node.Addresses
	if v.node == "" {
		v.node = facts.Node.Name
	}
	return v
}

// same reports whether Services compile to the same under both views, except those
// with an address that is the node's own under one view only.
func (v *view) same(w *view) bool {
	return v.node == w.node && v.zone == w.zone && slices.Equal(v.addrs, w.addrs) && slices.Equal(v.own.nodePorts, w.own.nodePorts) &&
		v.detector.Detects(IPv4) == w.detector.Detects(IPv4) &&
		v.detector.Detects(IPv6) == w.detector.Detects(IPv6)
}

func (v *view) local(e *cluster.Endpoint) bool { return e.Node != "" && e.Node == v.node }

// inside reports whether an address of this node lies in the prefixes.
func (v *view) inside(prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if slices.ContainsFunc(v.addrs, p.Contains) {
			return true
		}
	}
	return false
}

// builder makes routes for Services. What it makes depends on its arguments
// only; it keeps room to work in from one to the next.
type builder struct {
	view       *view
	candidates []candidate
	lost       []candidate // by the Service made last
	choices    []Choice
	supplies   supplies
}

// state is a Service with its EndpointSlices.
type state struct {
	service *cluster.Service
	slices  []*cluster.Slice
}

// service makes the route of a Service. The winner of a contested claim is
// looked up in claims. What the Service asks for and does not get is in b.lost;
// the problems returned are all others.
func (b *builder) service(st state, claims *claims) (*Service, []Problem) {
	svc := st.service
	out := &Service{Name: svc.Name, Ignored: svc.Ignored}
	b.candidates, b.lost, b.choices = reuse(b.candidates), reuse(b.lost), reuse(b.choices)
	if svc.Ignored != "" {
		return out, nil
	}
	b.candidates = appendCandidates(b.candidates, svc, b.view.families)
	left := b.candidates
	if len(left) == 0 {
		out.Ignored = whyNoFronts(svc)
		return out, nil
	}
	b.supplies = suppliesOf(st)
	if n := b.supplies.backends(svc); n > maxBackends {
		b.supplies = supplies{}
		p := tooManyBackends(svc, n)
		out.Ignored = p.Reason
		return out, []Problem{p}
	}
	problems := b.view.own.problems(svc, b.view.families)
	var g guard
	groups := countGroups(left)
	out.Ports = make([]Port, 0, groups)
	for i, f := 0, Family(0); i < groups; i++ {
		if left[0].family != f {
			f = left[0].family
			g = guardOf(svc, f, b.view)
			problems = append(problems, g.problems(svc, f)...)
		}
		n := groupLen(left)
		won, hidden := b.sift(left[:n], svc, claims)
		left = left[n:]
		problems = append(problems, hidden...)
		if len(won) > 0 {
			out.Ports = append(out.Ports, b.port(st, won, g))
		}
	}
	out.Health = b.health(st, claims)
	out.Lost = len(b.lost)
	b.supplies = supplies{}
	return out, problems
}

// maxBackends bounds the backends of a Service, over all its ports. A port has a
// list of its own, of 32 bytes for each, so that 100 ports with 100,000 endpoints
// would take the memory of the node.
const maxBackends = 1_000_000

func tooManyBackends(svc *cluster.Service, n int) Problem {
	return Problem{
		Object: "Service " + svc.Name.String(),
		Field:  "spec.ports",
		Value:  fmt.Sprintf("%d backends", n),
		Reason: fmt.Sprintf("its ports and endpoints make more than %d backends, more than this node has memory for; "+
			"the Service is not programmed: use fewer ports or endpoints", maxBackends),
	}
}

// reuse returns an empty list in the memory of one that is not needed any more,
// unless that is so large that few Services would ever fill it.
func reuse[T any](list []T) []T {
	if cap(list) > 1<<14 {
		return nil
	}
	return list[:0]
}

func whyNoFronts(svc *cluster.Service) string {
	if len(svc.Ports) == 0 {
		return "no ports"
	}
	return "no clusterIP of a family in use"
}

// groupLen counts the candidates at the beginning that make one Port.
func groupLen(list []candidate) int {
	n := 1
	for n < len(list) && list[n].port == list[0].port && list[n].family == list[0].family {
		n++
	}
	return n
}

func countGroups(list []candidate) int {
	groups := 0
	for ; len(list) > 0; list = list[groupLen(list):] {
		groups++
	}
	return groups
}

// sift returns the candidates that the Service gets, in the memory of the list, and
// adds those that belong to others to b.lost. The problems are fronts that would
// hide a listener of the proxy itself.
func (b *builder) sift(list []candidate, svc *cluster.Service, claims *claims) (won []candidate, hidden []Problem) {
	won = list[:0]
	for _, c := range list {
		if l, hides := b.view.own.hiddenBy(c); hides {
			hidden = append(hidden, c.problem(svc, l.reason()))
			continue
		}
		if c.lost(svc, claims) {
			b.lost = append(b.lost, c)
			continue
		}
		won = append(won, c)
	}
	return won, hidden
}

// problems reports load balancer addresses that no client can use.
func (g guard) problems(svc *cluster.Service, f Family) []Problem {
	if !g.restricted || len(g.allow) > 0 {
		return nil
	}
	if !slices.ContainsFunc(svc.LoadBalancerIPs, func(a netip.Addr) bool { return FamilyOf(a) == f }) {
		return nil
	}
	return []Problem{{
		Object: "Service " + svc.Name.String(),
		Field:  "spec.loadBalancerSourceRanges",
		Reason: fmt.Sprintf("has no usable %s range: the %s load balancer addresses are closed to everybody", f, f),
	}}
}

// port makes one Port with the fronts won.
func (b *builder) port(st state, won []candidate, g guard) Port {
	sp, f := st.service.Ports[won[0].port], won[0].family
	p := Port{
		Name:     sp.Name,
		Protocol: sp.Protocol,
		Family:   f,
		Affinity: st.service.Affinity,
		Fronts:   make([]Front, 0, len(won)),
	}
	b.choices = b.supplies.candidates(b.choices[:0], backendKey{sp.Name, sp.Protocol, f})
	candidates := b.choices
	choose(candidates, Local, b.view)
	s := supply{local: countChosen(candidates), any: slices.ContainsFunc(candidates, Choice.usable)}
	internal := internalWays(st.service, s, f, b.view)
	external := externalWays(st.service, s, f, b.view)
	for _, c := range won {
		front := Front{Kind: c.kind, Addr: c.addr, Port: c.claim.port}
		w := external
		if c.kind == ClusterIP {
			w = internal
		}
		front.Pods, front.Node, front.Others = w.pods, w.node, w.others
		if c.kind == LoadBalancer {
			front.Restricted, front.Allow = g.restricted, g.allow
		}
		p.Fronts = append(p.Fronts, front)
	}
	b.fill(&p, candidates)
	return p
}

// fill sets the lists of backends that the fronts of the Port use. On entry the
// choices are those for the local pool.
func (b *builder) fill(p *Port, candidates []Choice) {
	if p.uses(Local) {
		p.Local = chosen(candidates)
		p.Here = b.here(candidates)
	}
	if p.uses(Cluster) {
		choose(candidates, Cluster, b.view)
		p.Cluster = share(chosen(candidates), p.Local)
		p.Here = merge(p.Here, b.here(candidates))
	}
	if p.Protocol == cluster.UDP {
		p.Serving = share(serving(candidates), p.Cluster)
	}
}

func (p *Port) uses(pool Pool) bool {
	balances := func(w Way) bool { return w.Verdict == Balance && w.Pool == pool }
	for _, f := range p.Fronts {
		if balances(f.Pods) || balances(f.Node) || balances(f.Others) {
			return true
		}
	}
	return false
}

func (c Choice) usable() bool { return usable(c.Endpoint) }

func countChosen(list []Choice) int {
	n := 0
	for i := range list {
		if list[i].Reason == Chosen {
			n++
		}
	}
	return n
}

// chosen returns the chosen backends; nil if there are none.
func chosen(list []Choice) []netip.AddrPort {
	n := countChosen(list)
	if n == 0 {
		return nil
	}
	out := make([]netip.AddrPort, 0, n)
	for i := range list {
		if list[i].Reason == Chosen {
			out = append(out, list[i].Backend)
		}
	}
	return out
}

// serving returns the backends whose established flows may go on: those that
// serve, and ready ones in any case, as they are given new flows (an endpoint
// published before it is ready is ready without serving).
func serving(list []Choice) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range list {
		if e := list[i].Endpoint; e.Serving || e.Ready {
			out = append(out, list[i].Backend)
		}
	}
	return slices.Clip(out)
}

// here returns the addresses of chosen endpoints that may be on this node.
func (b *builder) here(list []Choice) []netip.Addr {
	var out []netip.Addr
	for i := range list {
		c := &list[i]
		if c.Reason != Chosen || c.Endpoint.Node != "" && !b.view.local(c.Endpoint) {
			continue
		}
		if a := c.Backend.Addr(); len(out) == 0 || out[len(out)-1] != a {
			out = append(out, a)
		}
	}
	return slices.Clip(out)
}

// merge returns the union of two sorted lists.
func merge(a, b []netip.Addr) []netip.Addr {
	if len(a) == 0 || slices.Equal(a, b) {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := slices.Concat(a, b)
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Clip(slices.Compact(out))
}

// share returns like in place of list if they are equal: one list in memory.
func share(list, like []netip.AddrPort) []netip.AddrPort {
	if slices.Equal(list, like) {
		return like
	}
	return list
}
