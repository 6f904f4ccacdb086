package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// render returns the entries of a Service in a family.
func (f *family) render(svc *route.Service, host *route.Host) []entry {
	if svc == nil {
		return nil
	}
	n := f.endpointsOf(svc) + 4*len(svc.Ports)
	r := renderer{family: f, host: host, known: make(map[key]bool, n), entries: make([]entry, 0, n)}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if p.Family != f.ip {
			continue
		}
		name := idOf(p.ID(svc.Name))
		r.port(name, p)
		if svc.Health != nil {
			r.line(filter, nodePorts, rule{
				protocol: cluster.TCP, port: svc.Health.Port, target: "ACCEPT",
				comment: name.text + " health check node port",
			})
		}
	}
	return r.entries
}

// renderer collects the entries of a Service.
type renderer struct {
	*family
	host    *route.Host
	entries []entry
	known   map[key]bool // keys of entries
	text    []byte       // a buffer
}

// add adds an entry, unless there is one with the same key: ports that differ only in the
// protocol may share a chain or rule.
func (r *renderer) add(k key, value string) {
	if r.known[k] {
		return
	}
	r.known[k] = true
	r.entries = append(r.entries, entry{Key: k, Value: value})
}

// line adds a rule of a shared chain.
func (r *renderer) line(t table, chain string, l rule) {
	r.text = l.append(r.text[:0])
	r.add(key{t, chain, string(r.text)}, "")
}

// own adds a chain of the Service.
func (r *renderer) own(name string, list ...rule) {
	r.text = r.text[:0]
	for _, l := range list {
		r.text = append(l.append(r.text), '\n')
	}
	r.add(key{table: nat, chain: name}, string(r.text))
}

// port adds the rules that match the frontends of a port, and the chains to which they jump.
func (r *renderer) port(name id, p *route.Port) {
	for _, f := range inKindOrder(p.Frontends) {
		if f.Kind == route.ClusterIP {
			r.internal(name, p, f)
			continue
		}
		r.external(name, p, f)
	}
	for _, pool := range []route.Pool{route.Cluster, route.Local} {
		if p.Uses(pool) && verdictOf(p, route.Action{Verdict: route.Balance, Pool: pool}) == route.Balance {
			r.pool(name, p, pool)
		}
	}
}

// inKindOrder returns frontends in the order of kube-proxy's rules.
func inKindOrder(frontends []route.Frontend) []*route.Frontend {
	list := make([]*route.Frontend, 0, len(frontends))
	for _, kind := range []route.FrontendKind{route.ClusterIP, route.ExternalIP, route.LoadBalancer, route.NodePort} {
		for i := range frontends {
			if frontends[i].Kind == kind {
				list = append(list, &frontends[i])
			}
		}
	}
	return list
}

// internal adds the rule that matches a ClusterIP.
func (r *renderer) internal(name id, p *route.Port, f *route.Frontend) {
	at := match(p, f)
	if verdict := verdictOf(p, f.Others); verdict != route.Balance {
		r.refuse(services, at, name, verdict)
		return
	}
	at.comment, at.target = name.text+" cluster IP", name.pool(f.Others.Pool)
	r.frontend(at)
}

// verdictOf returns the verdict of an action. Backends without a weight refuse as if there were none.
func verdictOf(p *route.Port, to route.Action) route.Verdict {
	weighs := func(b netip.AddrPort) bool { return p.Weight(b) > 0 }
	if to.Verdict == route.Balance && len(p.Weights) > 0 && !slices.ContainsFunc(p.Backends(to.Pool), weighs) {
		return route.Reject
	}
	return to.Verdict
}

// match returns a rule that matches packets to a frontend.
func match(p *route.Port, f *route.Frontend) rule {
	at := rule{protocol: p.Protocol, port: f.Port}
	if f.Addr.IsValid() {
		at.to = single(f.Addr)
	}
	return at
}

// toThisNode matches packets to addresses of this node.
const toThisNode = "addrtype --dst-type LOCAL"

// external adds the rule that matches an address for clients outside of the cluster.
// Pods and this node may reach it while other clients may not.
func (r *renderer) external(name id, p *route.Port, f *route.Frontend) {
	at := match(p, f)
	if f.Kind == route.NodePort {
		at.match = toThisNode
	}
	if verdict := verdictOf(p, f.Others); verdict != route.Balance {
		r.refuse(external, at, name, verdict)
	}
	if verdictOf(p, f.Node) != route.Balance {
		return // refused to all clients
	}
	r.own(name.external(), r.bySource(name, p, f)...)
	at.target = name.external()
	switch f.Kind {
	case route.NodePort:
		r.nodePort(name, at)
		return
	case route.LoadBalancer:
		at.comment = name.text + " loadbalancer IP"
	default:
		at.comment = name.text + " external IP"
	}
	if f.Restricted {
		r.restrict(name, f, at)
		at.target = name.ranges()
	}
	r.frontend(at)
}

// frontend adds a rule that matches a frontend with an address of its own.
func (r *renderer) frontend(at rule) {
	for _, e := range r.entrances {
		r.line(nat, e.frontends, at)
	}
}

// nodePort adds the rule that matches a NodePort in the chain for packets to addresses of
// this node. If packets to 127.0.0.0/8 are counted, they have a rule before it.
func (r *renderer) nodePort(name id, at rule) {
	at.match, at.comment = "", name.text
	for _, e := range r.entrances {
		if r.counting && r.loopback(r.host) {
			counted := at
			counted.to, counted.counter = r.kernel.Loopback(), LoopbackNodePorts
			r.line(nat, e.nodePorts, counted)
		}
		r.line(nat, e.nodePorts, at)
	}
}

// refuse adds the rule for packets that no rule sent to a backend.
func (r *renderer) refuse(chain string, at rule, name id, v route.Verdict) {
	at.comment, at.target = name.text+" has no endpoints", r.reject(at.protocol)
	if v == route.Drop {
		at.comment, at.target = name.text+" has no local endpoints", "DROP"
	}
	r.line(filter, chain, at)
}

// reject returns the target that refuses packets. The kernel limits ICMP errors to about one a second for each client
// (net.ipv4.icmp_ratelimit), so they do not refuse each connection at once. Resets do. kube-proxy's mode userspace has
// no rule for this: it closed such connections.
func (r *renderer) reject(protocol cluster.Protocol) string {
	if r.isPortals() && protocol == cluster.TCP {
		return "REJECT --reject-with tcp-reset"
	}
	return "REJECT"
}

// restrict adds the chain that accepts only some sources. Other packets leave it with the
// frontend as their destination, and table filter drops them.
func (r *renderer) restrict(name id, f *route.Frontend, at rule) {
	var list []rule
	for _, allowed := range f.Allow {
		list = append(list, rule{from: iptables.Source(allowed), comment: at.comment, target: name.external()})
	}
	r.own(name.ranges(), append(list, rule{
		comment: "other traffic to " + name.text + " will be dropped by " + firewall,
	})...)
	at.comment, at.target = name.text+" traffic not accepted by "+name.ranges(), "DROP"
	r.line(filter, firewall, at)
}

// bySource returns the rules of an external frontend that treat packets from pods, from
// this node and from other clients differently.
func (r *renderer) bySource(name id, p *route.Port, f *route.Frontend) []rule {
	if f.Pods == f.Node && f.Node == f.Others {
		var list []rule
		if f.Others.Masquerade {
			list = append(list, rule{
				comment: "masquerade traffic for " + name.text + " external destinations", target: markMasq,
			})
		}
		return append(list, rule{target: name.pool(f.Others.Pool)})
	}
	var list []rule
	if f.Pods != f.Others && verdictOf(p, f.Pods) == route.Balance {
		for _, pods := range r.pods(r.host) {
			list = append(list, rule{
				from: pods, comment: "pod traffic for " + name.text + " external destinations",
				target: name.pool(f.Pods.Pool),
			})
		}
	}
	const here = "addrtype --src-type LOCAL"
	if f.Node.Masquerade {
		list = append(list, rule{
			comment: "masquerade LOCAL traffic for " + name.text + " external destinations", match: here,
			target: markMasq,
		})
	}
	list = append(list, rule{
		comment: "route LOCAL traffic for " + name.text + " external destinations", match: here,
		target: name.pool(f.Node.Pool),
	})
	if verdictOf(p, f.Others) == route.Balance {
		list = append(list, rule{target: name.pool(f.Others.Pool)})
	}
	return list
}

// pool adds the chain that chooses a backend, and the chains of the backends. The former marks connections to a
// ClusterIP for masquerading; for other frontends the chain before it does.
func (r *renderer) pool(name id, p *route.Port, pool route.Pool) {
	var list []rule
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == route.ClusterIP && f.Others.Verdict == route.Balance && f.Others.Pool == pool && f.Others.Masquerade {
			at := match(p, f)
			at.comment, at.target = name.text+" cluster IP", markMasq
			if !f.Pods.Masquerade {
				at.from, at.target = r.outside(r.host)
			}
			if at.target != "" {
				list = append(list, at)
			}
		}
	}
	backends := sorted(p.Backends(pool))
	if p.Affinity > 0 && !r.isPortals() {
		for _, b := range backends {
			list = append(list, r.choice(name, p, b, recentClient(name.endpoint(b), p.Affinity)))
		}
	}
	list = append(list, r.choices(name, p, backends)...)
	r.own(name.pool(pool), list...)
	if r.isPortals() {
		return
	}
	for _, b := range backends {
		r.backend(name, p, b)
	}
}

// choices returns the rules that choose a backend at random, by weight.
func (r *renderer) choices(name id, p *route.Port, backends []string) (list []rule) {
	weights, left := make([]int, len(backends)), 0
	for i, b := range backends {
		weights[i] = 1
		if len(p.Weights) > 0 {
			weights[i] = int(p.Weight(netip.MustParseAddrPort(b)))
		}
		left += weights[i]
	}
	for i, b := range backends {
		if weights[i] > 0 {
			list = append(list, r.choice(name, p, b, chance(weights[i], left)))
		}
		left -= weights[i]
	}
	return list
}

// sorted returns the backends as text, in the order of kube-proxy.
func sorted(backends []netip.AddrPort) []string {
	list := make([]string, 0, len(backends))
	for _, b := range backends {
		list = append(list, b.String())
	}
	slices.Sort(list)
	return list
}

// choice returns the rule that leads to a backend if the match holds. It leads to a listener directly: only
// the chain of the pool, and not the rules of the frontends, changes when a port does.
func (r *renderer) choice(name id, p *route.Port, backend, match string) rule {
	if r.isPortals() {
		return rule{protocol: p.Protocol, comment: name.text, match: match, target: "DNAT --to-destination " + backend}
	}
	return rule{
		comment: r.endpointComment(name.text + " -> " + backend), match: match, target: name.endpoint(backend),
	}
}

// chance returns the match of n of m packets at random. The kernel keeps 31 bits of a probability.
func chance(n, m int) string {
	if n == m {
		return ""
	}
	const one = 1 << 31
	probability := math.Round(one*float64(n)/float64(m)) / one
	return "statistic --mode random --probability " + strconv.FormatFloat(probability, 'f', 11, 64)
}

// recentClient returns the match of clients whose last connection to this endpoint is less than a time ago.
func recentClient(endpoint string, memory time.Duration) string {
	return fmt.Sprintf("recent --rcheck --seconds %d --reap --name %s", int(memory/time.Second), endpoint)
}

// backend adds the chain that sends packets to a backend. Connections of a backend to
// itself are masqueraded, as it would otherwise reply to itself directly.
func (r *renderer) backend(name id, p *route.Port, backend string) {
	endpoint := name.endpoint(backend)
	to := rule{protocol: p.Protocol, comment: r.endpointComment(name.text), target: "DNAT --to-destination " + backend}
	if p.Affinity > 0 {
		to.match = "recent --set --name " + endpoint
	}
	self := single(netip.MustParseAddrPort(backend).Addr())
	r.own(endpoint, rule{from: "-s " + self, comment: to.comment, target: markMasq}, to)
}
