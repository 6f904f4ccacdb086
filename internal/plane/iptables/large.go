package iptables

import (
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// services plans all Services. If it may, it leaves out the ports of which nothing
// is there, of Services that do not fit into one restore; it returns what remains of
// those.
func (d *diff) services(found *found) (left map[cluster.Name]*route.Service) {
	left = map[cluster.Name]*route.Service{}
	mentioned := sync.OnceValue(found.ports)
	for _, name := range inNameOrder(d.table) {
		svc := d.table.Services[name]
		if !d.partly || d.lines(svc) <= d.Plane.kernel.Room() {
			d.enter(name, d.render(svc, d.host), found)
			continue
		}
		there := *svc
		there.Ports = nil
		for _, part := range byPort(svc) {
			if part.Ports[0].Family == d.ip && found.nothing(part, mentioned()) {
				d.endpoints -= d.size(part)
				continue
			}
			there.Ports = append(there.Ports, part.Ports...)
			d.enter(name, d.render(part, d.host), found)
		}
		if len(there.Ports) < len(svc.Ports) {
			left[name] = &there
		}
	}
	return left
}

// byPort divides a Service into parts of one port name and family each.
func byPort(svc *route.Service) []*route.Service {
	type key struct {
		name string
		ip   route.Family
	}
	parts := map[key]*route.Service{}
	var list []*route.Service
	for i := range svc.Ports {
		k := key{svc.Ports[i].Name, svc.Ports[i].Family}
		if parts[k] == nil {
			part := *svc
			part.Ports = nil
			parts[k] = &part
			list = append(list, &part)
		}
		parts[k].Ports = append(parts[k].Ports, svc.Ports[i])
	}
	return list
}

// lines estimates how many lines the rules of a Service take.
func (d *diff) lines(svc *route.Service) int {
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
func (f *found) ports() map[string]bool {
	names := map[string]bool{}
	for _, rules := range f.order {
		for _, rule := range rules {
			_, comment, _ := strings.Cut(rule, `--comment "`)
			name, _, _ := strings.Cut(comment, " ")
			names[strings.TrimSuffix(name, `"`)] = true
		}
	}
	return names
}

// nothing reports whether no rule of the ports in the Service was found, whatever
// they led to.
func (f *found) nothing(part *route.Service, mentioned map[string]bool) bool {
	for i := range part.Ports {
		name := idOf(part, i)
		if mentioned[name.text] {
			return false
		}
		for _, chain := range []string{name.cluster(), name.local(), name.external(), name.ranges()} {
			if _, ok := f.chains[ref{nat, chain}]; ok {
				return false
			}
		}
	}
	return true
}
