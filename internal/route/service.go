package route

import (
	"cmp"
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
	preserve      bool   // Options.PreserveDestination
	direct        bool   // Options.Direct
	scheduler     string // Options.Scheduler
	serviceCIDRs  []netip.Prefix
	own           own
}

// viewOf returns the view that follows from the options and the facts.
func viewOf(opt Options, facts *cluster.Facts, host Host) *view {
	v := &view{
		families:      opt.families(),
		node:          opt.NodeName,
		detector:      host.Detector,
		masqueradeAll: host.MasqueradeAll,
		preserve:      opt.PreserveDestination,
		direct:        opt.Direct,
		scheduler:     opt.Scheduler,
		serviceCIDRs:  host.ServiceCIDRs,
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

// same reports whether Services without an address that only one of the views has have the same routes.
func (v *view) same(w *view) bool {
	return v.node == w.node && v.zone == w.zone && slices.Equal(v.addrs, w.addrs) &&
		v.own.nodePorts.Equal(w.own.nodePorts) && slices.Equal(v.serviceCIDRs, w.serviceCIDRs) &&
		v.detector.Detects(IPv4) == w.detector.Detects(IPv4) &&
		v.detector.Detects(IPv6) == w.detector.Detects(IPv6)
}

// refusal is why no Service may have a frontend on this node; empty: one may.
func (v *view) refusal(c candidate) string {
	if l, hides := v.own.hiddenBy(c); hides {
		return l.reason()
	}
	if c.kind == ExternalIP || c.kind == LoadBalancer {
		for _, p := range v.serviceCIDRs {
			if p.Contains(c.addr) {
				return fmt.Sprintf("left out, as only clusterIPs may be in the ServiceCIDR %s", p)
			}
		}
	}
	return ""
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

// builder compiles Services. A result depends on the arguments only; the buffers are reused for the next Service.
type builder struct {
	view       *view
	candidates []candidate
	lost       []candidate // frontends that the Service compiled last asks for, but others own
	choices    []Choice
	supplies   supplies
}

// state is a Service with its EndpointSlices.
type state struct {
	service *cluster.Service
	slices  []*cluster.Slice
	shares  cluster.Shares
}

// service returns the route of a Service. It sets b.lost to the frontends that belong to
// the owner in claims or to an earlier port, and returns all other problems.
func (b *builder) service(st state, claims *claims) (*Service, []Problem) {
	svc := st.service
	out := &Service{Name: svc.Name, Ignored: svc.Ignored}
	b.lost, b.choices = reuse(b.lost), reuse(b.choices)
	if svc.Ignored != "" {
		return out, nil
	}
	ports := countPorts(svc, b.view.families)
	if ports == 0 {
		out.Ignored = whyNoFrontends(svc)
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
	out.Ports = make([]Port, 0, ports)
	var g guard
	var f Family
	eachPort(&b.candidates, svc, b.view.families, func(list []candidate) {
		if list[0].family != f {
			f = list[0].family
			g = guardOf(svc, f, b.view)
			problems = append(problems, g.problems(svc, f)...)
		}
		won, refused := b.sift(list, svc, claims)
		problems = append(problems, refused...)
		if len(won) > 0 {
			out.Ports = append(out.Ports, b.port(st, won, g))
		}
	})
	if out.Health = b.health(st, claims); out.Health != nil {
		for i := range out.Ports {
			out.Ports[i].HealthPort = out.Health.Port
		}
	}
	out.Lost = len(b.lost)
	b.supplies = supplies{}
	return out, problems
}

// maxBackends bounds the backends of a Service, over all its ports. A backend of a port
// takes 32 bytes, so 100 ports with 100,000 endpoints would need 320 MB.
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

// reuse returns an empty list in the memory of a list. It drops a very large one, which few Services would fill.
func reuse[T any](list []T) []T {
	if cap(list) > 1<<14 {
		return nil
	}
	return list[:0]
}

func whyNoFrontends(svc *cluster.Service) string {
	if len(svc.Ports) == 0 {
		return "no ports"
	}
	return "no clusterIP of a family in use"
}

// sift returns the candidates that the Service owns, in the memory of the list, and adds all others to b.lost. The
// problems are frontends that no Service may have.
func (b *builder) sift(list []candidate, svc *cluster.Service, claims *claims) (won []candidate, refused []Problem) {
	won = list[:0]
	for _, c := range list {
		if reason := b.view.refusal(c); reason != "" {
			refused = append(refused, c.problem(svc, reason))
			continue
		}
		if c.lost(svc, claims) {
			b.lost = append(b.lost, c)
			continue
		}
		won = append(won, c)
	}
	return won, refused
}

// problems reports load balancer addresses that no client may use.
func (g guard) problems(svc *cluster.Service, f Family) []Problem {
	if !g.restricted || len(g.allow) > 0 {
		return nil
	}
	if !f.In(svc.LoadBalancerIPs) {
		return nil
	}
	return []Problem{{
		Object: "Service " + svc.Name.String(),
		Field:  "spec.loadBalancerSourceRanges",
		Reason: fmt.Sprintf("has no usable %s range: the %s load balancer addresses are closed to everybody", f, f),
	}}
}

// port returns a Port with the frontends that the Service owns.
func (b *builder) port(st state, won []candidate, g guard) Port {
	sp, f := st.service.Ports[won[0].port], won[0].family
	p := Port{
		Name:        sp.Name,
		Protocol:    sp.Protocol,
		Family:      f,
		Affinity:    st.service.Affinity,
		Scheduler:   cmp.Or(st.service.Scheduler, b.view.scheduler),
		SlowStart:   st.service.SlowStart,
		ProxyHeader: st.service.ProxyHeader,
		Frontends:   make([]Frontend, 0, len(won)),
	}
	p.PreserveDestination = st.service.PreserveDestination && b.view.preserve
	b.choices = b.supplies.candidates(b.choices[:0], backendKey{portName{sp.Name, sp.Protocol}, f})
	candidates := b.choices
	if b.view.direct && isDirect(st.service, won) {
		p.Owners = owners(st, candidates)
	}
	if p.Protocol == cluster.TCP && st.service.Ejection.On() {
		p.Ejection = st.service.Ejection
		setShares(candidates, sp.Name, st.shares)
	}
	choose(candidates, Local, b.view)
	s := supply{local: countChosen(candidates), any: slices.ContainsFunc(candidates, usable)}
	internal := internalWays(st.service, s, f, b.view)
	external := externalWays(st.service, s, f, b.view)
	for _, c := range won {
		frontend := Frontend{Kind: c.kind, Addr: c.addr, Port: c.claim.port}
		w := external
		switch {
		case c.kind == ClusterIP:
			w = internal
		case len(p.Owners) > 0 && c.kind != NodePort && s.local > 0:
			w = localWays(s, f, b.view)
		case c.kind != ExternalIP && p.PreserveDestination && s.any:
			w = localWays(s, f, b.view)
		}
		frontend.Pods, frontend.Node, frontend.Others = w.pods, w.node, w.others
		if c.kind == LoadBalancer {
			frontend.Restricted, frontend.Allow = g.restricted, g.allow
		}
		p.Frontends = append(p.Frontends, frontend)
	}
	b.fill(&p, candidates)
	p.Weights = shared(&p, weights(st, candidates), candidates)
	return p
}

// besideWeighted is the weight of endpoints without one if a slice of their Service has one, as in Cilium.
const besideWeighted = 100

// weights returns the backends whose weight is not 1; nil if there are none. The Service gives weights by address or
// else by node, and each slice to those of its endpoints that have none.
func weights(st state, candidates []Choice) map[netip.AddrPort]uint16 {
	of, other := st.service.Weights, uint16(1)
	if slices.ContainsFunc(st.slices, func(sl *cluster.Slice) bool { return sl.Weight != nil }) {
		other = besideWeighted
	} else if len(of) == 0 {
		return nil
	}
	out := map[netip.AddrPort]uint16{}
	for i := range candidates {
		c := &candidates[i]
		w, has := of[c.Backend.Addr().String()]
		if !has {
			w, has = of[c.Endpoint.Node]
		}
		switch {
		case has:
		case c.Slice.Weight != nil:
			w = *c.Slice.Weight
		default:
			w = other
		}
		if w != 1 {
			out[c.Backend] = w
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// fill sets the pools of the Port that its frontends use. The reasons of the candidates are those for the local pool.
func (b *builder) fill(p *Port, candidates []Choice) {
	if p.Uses(Local) {
		p.Local = chosen(candidates)
		p.Here = b.here(candidates)
		p.Ejected = ejected(nil, candidates)
	}
	if p.Uses(Cluster) {
		choose(candidates, Cluster, b.view)
		p.Cluster = share(chosen(candidates), p.Local)
		p.Ejected = ejected(p.Ejected, candidates)
		p.Here, p.Unplaced = merge(p.Here, b.here(candidates)), unplaced(candidates)
	}
	if p.Protocol == cluster.UDP {
		p.Serving = share(serving(candidates), p.Cluster)
	}
}

// Uses reports whether a frontend of the port sends connections to a pool.
func (p *Port) Uses(pool Pool) bool {
	balances := func(w Action) bool { return w.Verdict == Balance && w.Pool == pool }
	for _, f := range p.Frontends {
		if balances(f.Pods) || balances(f.Node) || balances(f.Others) {
			return true
		}
	}
	return false
}

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

// serving returns the backends that keep their established flows: all that serve, and all ready ones, as they receive
// new flows (with publishNotReadyAddresses an endpoint is ready without serving).
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

// unplaced returns the addresses of chosen endpoints whose node is not known.
func unplaced(list []Choice) []netip.Addr {
	var out []netip.Addr
	for i := range list {
		if c := &list[i]; c.Reason == Chosen && c.Endpoint.Node == "" {
			out = append(out, c.Backend.Addr())
		}
	}
	return slices.Clip(slices.Compact(out))
}
