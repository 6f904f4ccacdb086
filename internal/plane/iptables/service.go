package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// render returns the entries of a Service in a family.
func (f *family) render(svc *route.Service, host *route.Host) []entry {
	if svc == nil {
		return nil
	}
	n := f.entries(svc)
	r := renderer{family: f, host: host, known: make(map[key]bool, n), entries: make([]entry, 0, n)}
	ids := newIDs(svc.Name)
	for i := range svc.Ports {
		if svc.Ports[i].Family != f.ip {
			continue
		}
		name := ids.of(&svc.Ports[i])
		r.port(name, &svc.Ports[i])
		if svc.Health != nil {
			r.line(filter, nodePorts, rule{
				protocol: cluster.TCP, port: svc.Health.Port, target: "ACCEPT",
				comment: comment(name.text, " health check node port"),
			})
		}
	}
	return r.entries
}

// entries estimates how many entries a Service has.
func (f *family) entries(svc *route.Service) int {
	n := 0
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Family == f.ip {
			n += 1 + len(p.Fronts) + max(len(p.Cluster), len(p.Local))
		}
	}
	return n
}

// renderer collects the entries of a Service.
type renderer struct {
	*family
	host    *route.Host
	entries []entry
	known   map[key]bool // keys of entries
	text    []byte       // of the last rules, to be used again
}

// add adds an entry, unless it is there already: ports that differ in the protocol
// alone may have the same name in a chain or rule.
func (r *renderer) add(k key, value string) {
	if r.known[k] {
		return
	}
	r.known[k] = true
	r.entries = append(r.entries, entry{Key: k, Value: value})
}

// line adds a rule of a shared chain.
func (r *renderer) line(t table, chain string, l rule) {
	r.add(key{t, chain, r.print(l)}, "")
}

// print returns a rule as a string that takes no more memory than it needs.
func (r *renderer) print(l rule) string {
	r.text = l.append(r.text[:0])
	return string(r.text)
}

// own adds a chain of the Service.
func (r *renderer) own(name string, list ...rule) {
	r.text = r.text[:0]
	for _, l := range list {
		r.text = append(l.append(r.text), '\n')
	}
	r.add(key{table: nat, chain: name}, string(r.text))
}

// port adds the rules of a port: how its fronts are recognised, and the chains
// they lead to.
func (r *renderer) port(name id, p *route.Port) {
	used := [2]bool{}
	for _, f := range inKindOrder(p.Fronts) {
		for _, w := range []route.Way{f.Pods, f.Node, f.Others} {
			if w.Verdict == route.Balance {
				used[w.Pool] = true
			}
		}
		if f.Kind == route.ClusterIP {
			r.internal(name, p, f)
			continue
		}
		r.external(name, p, f)
	}
	for _, pool := range []route.Pool{route.Cluster, route.Local} {
		if used[pool] {
			r.pool(name, p, pool)
		}
	}
}

// inKindOrder returns fronts in the order of kube-proxy's rules.
func inKindOrder(fronts []route.Front) []*route.Front {
	list := make([]*route.Front, 0, len(fronts))
	for _, kind := range []route.Kind{route.ClusterIP, route.ExternalIP, route.LoadBalancer, route.NodePort} {
		for i := range fronts {
			if fronts[i].Kind == kind {
				list = append(list, &fronts[i])
			}
		}
	}
	return list
}

// internal adds how a ClusterIP is recognised.
func (r *renderer) internal(name id, p *route.Port, f *route.Front) {
	at := rule{to: f.Addr, protocol: p.Protocol, port: f.Port}
	if f.Others.Verdict != route.Balance {
		r.refuse(services, at, name, f.Others.Verdict)
		return
	}
	at.comment, at.target = comment(name.text, " cluster IP"), name.pool(f.Others.Pool)
	r.line(nat, services, at)
}

// external adds how an address meant for the outside is recognised. Pods and
// this node may reach it where others may not.
func (r *renderer) external(name id, p *route.Port, f *route.Front) {
	at := rule{to: f.Addr, protocol: p.Protocol, port: f.Port}
	if f.Kind == route.NodePort {
		at.match = "-m addrtype --dst-type LOCAL"
	}
	if f.Others.Verdict != route.Balance {
		r.refuse(external, at, name, f.Others.Verdict)
	}
	if f.Node.Verdict != route.Balance {
		return // refused to all alike
	}
	r.own(name.external(), r.entry(name, f)...)
	at.target = name.external()
	switch f.Kind {
	case route.NodePort:
		r.nodePort(name, at)
		return
	case route.LoadBalancer:
		at.comment = comment(name.text, " loadbalancer IP")
	default:
		at.comment = comment(name.text, " external IP")
	}
	if f.Restricted {
		r.restrict(name, f, at)
		at.target = name.ranges()
	}
	r.line(nat, services, at)
}

// nodePort adds how a NodePort is recognised in the chain that packets to this
// node's addresses pass. Packets to 127.0.0.0/8 have a rule of their own right before
// it where they are counted.
func (r *renderer) nodePort(name id, at rule) {
	at.match, at.comment = "", comment(name.text)
	k, value := key{nat, nodePorts, r.print(at)}, ""
	if r.counting && r.loopback(r.host) {
		at.loopback, at.counter = true, LoopbackNodePorts
		value = join(at.String(), k.rule)
	}
	r.add(k, value)
}

// refuse adds the end of packets that nothing has led to a backend.
func (r *renderer) refuse(chain string, at rule, name id, v route.Verdict) {
	at.comment, at.target = comment(name.text, " has no endpoints"), "REJECT --reject-with "+r.unreachable
	if v == route.Drop {
		at.comment, at.target = comment(name.text, " has no local endpoints"), "DROP"
	}
	r.line(filter, chain, at)
}

// restrict adds the chain that lets only some sources in. All others pass it, and
// meet their end in the table filter, as their destination is still the front.
func (r *renderer) restrict(name id, f *route.Front, at rule) {
	var list []rule
	for _, allowed := range f.Allow {
		list = append(list, rule{from: source{cidr: allowed.String()}, comment: at.comment, target: name.external()})
	}
	r.own(name.ranges(), append(list, rule{
		comment: comment("other traffic to ", name.text, " will be dropped by ", firewall),
	})...)
	at.comment, at.target = comment(name.text, " traffic not accepted by ", name.ranges()), "DROP"
	r.line(filter, firewall, at)
}

// entry are the rules by which packets from pods, from this node and from others
// part, where they do.
func (r *renderer) entry(name id, f *route.Front) []rule {
	if f.Pods == f.Node && f.Node == f.Others {
		var list []rule
		if f.Others.Masquerade {
			list = append(list, rule{comment: comment("masquerade traffic for ", name.text, " external destinations"), target: markMasq})
		}
		return append(list, rule{target: name.pool(f.Others.Pool)})
	}
	var list []rule
	if f.Pods != f.Others {
		for _, pods := range r.pods(r.host) {
			list = append(list, rule{from: pods, comment: comment("pod traffic for ", name.text, " external destinations"), target: name.pool(f.Pods.Pool)})
		}
	}
	const here = "-m addrtype --src-type LOCAL"
	list = append(list,
		rule{comment: comment("masquerade LOCAL traffic for ", name.text, " external destinations"), match: here, target: markMasq},
		rule{comment: comment("route LOCAL traffic for ", name.text, " external destinations"), match: here, target: name.pool(f.Node.Pool)},
	)
	if f.Others.Verdict == route.Balance {
		list = append(list, rule{target: name.pool(f.Others.Pool)})
	}
	return list
}

// pool adds the chain that chooses a backend, and those of the backends. The
// source is marked for masquerading in the former only for those who came by a
// ClusterIP; for the others that is done before.
func (r *renderer) pool(name id, p *route.Port, pool route.Pool) {
	var list []rule
	for i := range p.Fronts {
		f := &p.Fronts[i]
		if f.Kind == route.ClusterIP && f.Others.Verdict == route.Balance && f.Others.Pool == pool && f.Others.Masquerade {
			at := rule{to: f.Addr, protocol: p.Protocol, port: f.Port, comment: comment(name.text, " cluster IP"), target: markMasq}
			if !f.Pods.Masquerade {
				at.from, at.target = r.outside(r.host)
			}
			if at.target != "" {
				list = append(list, at)
			}
		}
	}
	backends := inOrder(p.Backends(pool))
	if p.Affinity > 0 {
		for _, b := range backends {
			list = append(list, r.choice(name, b, r.recall(name.endpoint(b), p.Affinity)))
		}
	}
	for i, b := range backends {
		list = append(list, r.choice(name, b, chance(len(backends)-i)))
	}
	r.own(name.pool(pool), list...)
	for _, b := range backends {
		r.backend(name, p, b)
	}
}

// inOrder prints backends, and sorts them as kube-proxy does.
func inOrder(backends []netip.AddrPort) []string {
	list := make([]string, 0, len(backends))
	for _, b := range backends {
		list = append(list, b.String())
	}
	slices.Sort(list)
	return list
}

func (r *renderer) choice(name id, backend, match string) rule {
	return rule{comment: r.aside(name.text, " -> ", backend), match: match, target: name.endpoint(backend)}
}

// chance matches one of so many packets.
func chance(of int) string {
	if of == 1 {
		return ""
	}
	return "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(of), 'f', 10, 64)
}

// recall matches packets of clients that were sent to the backend with this chain
// less than so long ago.
func (r *renderer) recall(endpoint string, memory time.Duration) string {
	return fmt.Sprintf("-m recent --rcheck --seconds %d --reap --name %s --mask %s --rsource", int(memory/time.Second), endpoint, r.allOnes)
}

// backend adds the chain that leads to a backend. One that reaches itself would
// answer itself directly, and so is masqueraded.
func (r *renderer) backend(name id, p *route.Port, backend string) {
	endpoint := name.endpoint(backend)
	to := rule{protocol: p.Protocol, comment: r.aside(name.text), target: "DNAT --to-destination " + backend}
	if p.Affinity > 0 {
		to.match = fmt.Sprintf("-m recent --set --name %s --mask %s --rsource", endpoint, r.allOnes)
	}
	self := source{cidr: single(netip.MustParseAddrPort(backend).Addr())}
	r.own(endpoint, rule{from: self, comment: to.comment, target: markMasq}, to)
}
