package iptables

import (
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// services plans all Services. If it may, it leaves out ports of which the kernel
// holds nothing, of Services that do not fit into one restore.
func (d *familyPlan) services(found *listing) {
	d.left = map[cluster.Name]*route.Service{}
	mentioned := sync.OnceValue(found.ports)
	for _, name := range inNameOrder(d.change.Table) {
		svc := d.change.Table.Services[name]
		if d.change.Partly && d.lines(svc) > d.room {
			if there := d.without(svc, func(p id) bool { return found.nothing(p, mentioned()) }); len(there.Ports) < len(svc.Ports) {
				d.endpoints -= d.size(svc) - d.size(there)
				d.left[name], svc = there, there
			}
		}
		d.service(name, nil, d.render(svc, d.host))
	}
}

// without returns a Service without the ports of this family that are missing. Ports
// of one name are missing together.
func (d *familyPlan) without(svc *route.Service, missing func(id) bool) *route.Service {
	there := map[string]bool{} // by name of ports
	ids := newIDs(svc.Name)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		name := ids.of(p)
		there[p.Name] = there[p.Name] || p.Family == d.ip && !missing(name)
	}
	part := *svc
	part.Ports = nil
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Family != d.ip || there[p.Name] {
			part.Ports = append(part.Ports, *p)
		}
	}
	return &part
}

// lines estimates how many lines the rules of a Service take.
func (d *familyPlan) lines(svc *route.Service) int {
	n := 0
	for i := range svc.Ports {
		if svc.Ports[i].Family == d.ip {
			n += linesOf(&svc.Ports[i])
		}
	}
	return n
}

// ports returns the names of Service ports that rules of shared chains mention in
// their comments, as id.text: "default/web:http".
func (l *listing) ports() map[string]bool {
	names := map[string]bool{}
	for chain := range l.lines {
		for _, rule := range l.rules(chain) {
			_, comment, _ := strings.Cut(rule, `--comment "`)
			name, _, _ := strings.Cut(comment, " ")
			names[strings.TrimSuffix(name, `"`)] = true
		}
	}
	return names
}

// nothing reports whether the kernel held no rule of a port, whatever its rules led
// to.
func (l *listing) nothing(port id, mentioned map[string]bool) bool {
	for _, chain := range []string{port.cluster(), port.local(), port.external(), port.ranges()} {
		if _, there := l.seen[nat][chain]; there {
			return false
		}
	}
	return !mentioned[port.text]
}
