package iptables

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// partial returns the Services of which a comparison writes only some ports: those that do
// not fit into one restore and have ports without rules in the kernel. The returned
// Services do not have these ports.
func (p *Plane) partial(change route.Change, found map[route.Family]*listing) map[cluster.Name]*route.Service {
	list := map[cluster.Name]*route.Service{}
	if !change.Partly {
		return list
	}
	for name, svc := range change.Table.Services {
		if lines(svc) <= p.kernel.Room() {
			continue
		}
		part := without(svc, func(i id, p *route.Port) bool {
			return found[p.Family] != nil && !found[p.Family].holds(i, p)
		})
		if len(part.Ports) < len(svc.Ports) {
			list[name] = part
		}
	}
	return list
}

// lines estimates the number of lines for the rules of a Service, in the family with more
// of them.
func lines(svc *route.Service) int {
	n := map[route.Family]int{}
	for i := range svc.Ports {
		n[svc.Ports[i].Family] += linesOf(&svc.Ports[i])
	}
	return max(n[route.IPv4], n[route.IPv6])
}

// without returns a Service without some ports. It leaves out ports with the same name and
// family only together, as the chains of one depend on the others.
func without(svc *route.Service, missing func(id, *route.Port) bool) *route.Service {
	type group struct {
		name string
		ip   route.Family
	}
	kept := map[group]bool{}
	ids := newIDs(svc.Name)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if name := ids.of(p); !missing(name, p) {
			kept[group{p.Name, p.Family}] = true
		}
	}
	part := *svc
	part.Ports = nil
	for _, p := range svc.Ports {
		if kept[group{p.Name, p.Family}] {
			part.Ports = append(part.Ports, p)
		}
	}
	return &part
}

// holds reports whether the kernel has a chain of a port, a rule of a shared chain whose
// comment names the port, or a rule for one of its frontends. That rule may be of another
// port that has lost the frontend: the comparison deletes it, so it must write this port
// as well.
func (l *listing) holds(name id, p *route.Port) bool {
	for _, chain := range []string{name.cluster(), name.local(), name.external(), name.ranges()} {
		if _, exists := l.state[nat][chain]; exists {
			return true
		}
	}
	if l.ports == nil {
		l.collect()
	}
	return l.ports[name.text] || slices.ContainsFunc(p.Frontends, func(f route.Frontend) bool {
		return l.frontends[match(p, &f).String()]
	})
}

// collect collects ports and frontends from the rules of shared chains.
func (l *listing) collect() {
	l.ports, l.frontends = map[string]bool{}, map[string]bool{}
	for chain := range l.lines {
		for _, rule := range l.rules(chain) {
			_, comment, _ := strings.Cut(rule, `--comment "`)
			name, _, _ := strings.Cut(comment, " ")
			l.ports[strings.TrimSuffix(name, `"`)] = true
			at, _, _ := strings.Cut(uncommented(rule), " -j ")
			l.frontends[strings.Replace(at, " -m "+toThisNode, "", 1)] = true
		}
	}
}
