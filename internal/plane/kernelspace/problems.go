package kernelspace

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// problems reports each problem once, and again if it was solved meanwhile.
type problems struct {
	network  string
	report   func([]route.Problem) // may be nil
	reported map[route.Problem]bool
}

// ofNetwork reports a problem of the network.
func (p *problems) ofNetwork(reason string) {
	p.add([]route.Problem{{Object: "HNS network " + p.network, Reason: reason}})
}

// ofServices reports what HNS does not serve of the Services in a table.
func (p *problems) ofServices(t *route.Table) {
	var found []route.Problem
	for _, name := range t.Order() {
		found = append(found, unserved(name, t.Services[name])...)
	}
	maps.DeleteFunc(p.reported, func(r route.Problem, _ bool) bool { return r.Field != "" && !slices.Contains(found, r) })
	p.add(found)
}

// ofChange reports what HNS does not serve of a Service that has changed.
func (p *problems) ofChange(t route.Touch) {
	found := unserved(t.Name, t.New)
	for _, r := range unserved(t.Name, t.Old) {
		if !slices.Contains(found, r) {
			delete(p.reported, r)
		}
	}
	p.add(found)
}

func (p *problems) add(found []route.Problem) {
	var unreported []route.Problem
	for _, r := range found {
		if !p.reported[r] {
			p.reported[r], unreported = true, append(unreported, r)
		}
	}
	if p.report != nil && len(unreported) > 0 {
		p.report(unreported)
	}
}

// unserved returns a problem for each port that HNS does not serve, or not as a whole.
func unserved(name cluster.Name, svc *route.Service) (problems []route.Problem) {
	if svc == nil {
		return nil
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		at := slices.IndexFunc(p.Frontends, func(f route.Frontend) bool { return f.Kind == route.ClusterIP })
		reason := whyUnserved(p)
		if at < 0 || reason == "" {
			continue
		}
		problems = append(problems, route.Problem{
			Object: "Service " + name.String(), Field: "spec.ports", Reason: reason,
			Value: fmt.Sprintf("%d/%s", p.Frontends[at].Port, strings.ToUpper(p.Protocol.String())),
		})
	}
	return problems
}

// whyUnserved returns why HNS does not serve a port or some of its backends; empty: it does.
func whyUnserved(p *route.Port) string {
	if protocolOf(p.Protocol) == 0 {
		return "HNS does not balance SCTP: the port is not served in mode kernelspace"
	}
	if backends := p.Backends(route.Cluster); len(ofOnePort(backends)) < len(backends) {
		return "a load balancer of HNS leads to one port of backends: in mode kernelspace only " +
			"backends at the most common port are served"
	}
	return ""
}
