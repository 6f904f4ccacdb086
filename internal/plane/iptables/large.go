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
		part := *svc
		part.Ports = slices.DeleteFunc(slices.Clone(svc.Ports), func(p route.Port) bool {
			return found[p.Family] != nil && !found[p.Family].holds(&p)
		})
		if len(part.Ports) < len(svc.Ports) {
			list[name] = &part
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

// holds reports whether the kernel has the rule of a frontend of a port. It may be of another port that
// has lost the frontend: the comparison deletes it, so it must write this port as well.
func (l *listing) holds(p *route.Port) bool {
	if l.frontends == nil {
		l.collect()
	}
	return slices.ContainsFunc(p.Frontends, func(f route.Frontend) bool { return l.frontends[match(p, &f).String()] })
}

// collect collects what the rules of shared chains match, without comments and targets.
func (l *listing) collect() {
	l.frontends = map[string]bool{}
	for chain := range l.lines {
		for _, rule := range l.rules(chain) {
			at, _, _ := strings.Cut(uncommented(rule), " -j ")
			l.frontends[strings.Replace(at, " -m "+toThisNode, "", 1)] = true
		}
	}
}
