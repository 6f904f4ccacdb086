package kernelspace

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// unserved holds the ports that HNS cannot balance, by Service.
type unserved map[cluster.Name][]uint16

// note stores the unserved ports of a Service, and returns a problem for each new one.
func (u unserved) note(name cluster.Name, svc *route.Service) (problems []route.Problem) {
	had := u[name]
	delete(u, name)
	if svc == nil {
		return nil
	}
	for i := range svc.Ports {
		port, is := unservedPort(&svc.Ports[i])
		if !is || slices.Contains(u[name], port) {
			continue // the port of the other family
		}
		u[name] = append(u[name], port)
		if !slices.Contains(had, port) {
			problems = append(problems, route.Problem{
				Object: "Service " + name.String(), Field: "spec.ports", Value: fmt.Sprintf("%d/SCTP", port),
				Reason: "HNS does not balance SCTP: the port is not served in mode kernelspace",
			})
		}
	}
	return problems
}

// unservedPort returns the port of a clusterIP if HNS cannot balance its protocol.
func unservedPort(p *route.Port) (uint16, bool) {
	at := slices.IndexFunc(p.Frontends, func(f route.Frontend) bool { return f.Kind == route.ClusterIP })
	if at < 0 || protocolOf(p.Protocol) != 0 {
		return 0, false
	}
	return p.Frontends[at].Port, true
}

// reportUnserved reports the ports of Services in a change that HNS cannot balance.
func (p *Plane) reportUnserved(change route.Change) {
	var problems []route.Problem
	if p.fresh {
		for name := range p.unserved {
			if change.Table.Services[name] == nil {
				delete(p.unserved, name)
			}
		}
		for _, name := range change.Table.Order() {
			problems = append(problems, p.unserved.note(name, change.Table.Services[name])...)
		}
	} else {
		for _, t := range change.Touched {
			problems = append(problems, p.unserved.note(t.Name, t.New)...)
		}
	}
	if len(problems) > 0 && p.opt.Report != nil {
		p.opt.Report(problems)
	}
}
