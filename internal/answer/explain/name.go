package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// byName answers for a Service: where connections to its clusterIPs go, which are
// the addresses of its name in DNS.
func (a *asker) byName(out *Answer) {
	svc := a.view.Routes.Service(a.question.Service)
	switch {
	case svc == nil:
		out.Unanswered = fmt.Sprintf("there is no Service %s", a.question.Service) + a.similar()
		return
	case svc.Ignored != "":
		out.Unanswered = fmt.Sprintf("Service %s is not programmed: %s", svc.Name, svc.Ignored)
		return
	}
	ips := a.clusterIPs(svc)
	if len(ips) == 0 {
		out.Unanswered = fmt.Sprintf("Service %s has no clusterIP of its own%s", svc.Name, a.ofSource())
		out.Notes = alsoAt(svc)
		return
	}
	if a.question.PortName != "" && !a.resolve(svc) {
		out.Unanswered = fmt.Sprintf("Service %s has no port %s; it has %s", svc.Name, a.question.PortName,
			strings.Join(portsOf(svc), ", "))
		return
	}
	for _, ip := range ips {
		out.Cases = append(out.Cases, a.at(ip)...)
	}
	out.Notes = append(out.Notes, alsoAt(svc)...)
}

func (a *asker) ofSource() string {
	if !a.question.Source.IsValid() {
		return ""
	}
	return fmt.Sprintf(" in %s, the family of %s", route.FamilyOf(a.question.Source), a.question.Source)
}

// clusterIPs returns the clusterIPs of the Service that the source can send to.
func (a *asker) clusterIPs(svc *route.Service) []netip.Addr {
	var out []netip.Addr
	for _, f := range frontendsOf(svc) {
		reachable := !a.question.Source.IsValid() || a.question.Source.Is4() == f.frontend.Addr.Is4()
		if f.frontend.Kind == route.ClusterIP && reachable && !slices.Contains(out, f.frontend.Addr) {
			out = append(out, f.frontend.Addr)
		}
	}
	return out
}

func frontendsOf(svc *route.Service) []found {
	var out []found
	for i := range svc.Ports {
		for j := range svc.Ports[i].Frontends {
			out = append(out, found{service: svc, port: &svc.Ports[i], frontend: &svc.Ports[i].Frontends[j]})
		}
	}
	return out
}

// resolve sets the number and protocol of a port that the question names.
func (a *asker) resolve(svc *route.Service) bool {
	for _, f := range frontendsOf(svc) {
		wanted := a.question.Protocol == 0 || a.question.Protocol == f.port.Protocol
		if f.frontend.Kind == route.ClusterIP && f.port.Name == a.question.PortName && wanted {
			a.question.Port, a.question.Protocol = f.frontend.Port, f.port.Protocol
			return true
		}
	}
	return false
}

// eachOnce returns the distinct texts of frontends, in order and without empty ones. Its
// cost is linear, as a Service may have very many frontends.
func eachOnce(frontends []found, textOf func(found) string) []string {
	var out []string
	seen := map[string]struct{}{"": {}}
	for _, f := range frontends {
		s := textOf(f)
		if _, known := seen[s]; known {
			continue
		}
		seen[s] = struct{}{}
		out = append(out, s)
	}
	return out
}

// portsOf lists the ports of a Service, each once.
func portsOf(svc *route.Service) []string {
	return eachOnce(frontendsOf(svc), func(f found) string {
		if f.frontend.Kind != route.ClusterIP {
			return ""
		}
		return f.String()
	})
}

// alsoAt notes the other addresses of a Service.
func alsoAt(svc *route.Service) []string {
	all := eachOnce(frontendsOf(svc), func(f found) string {
		if f.frontend.Kind == route.ClusterIP {
			return ""
		}
		return f.frontend.Kind.String() + " " + frontendOf(f).Address
	})
	if len(all) == 0 {
		return nil
	}
	const most = 8
	if n := len(all) - most; n > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", n))
	}
	return []string{svc.Name.String() + " is also reached by " + strings.Join(all, ", ")}
}

// similar suggests Services whose names resemble the one in the question.
func (a *asker) similar() string {
	type suggestion struct {
		name     cluster.Name
		distance int
	}
	var all []suggestion
	for svc := range a.view.Routes.Services() {
		if d := distance(a.question.Service, svc.Name); d <= 2 && d < len(svc.Name.Name) {
			all = append(all, suggestion{svc.Name, d})
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(x, y suggestion) int { return cmp.Or(x.distance-y.distance, x.name.Compare(y.name)) })
	var names []string
	for _, s := range all[:min(len(all), 3)] {
		names = append(names, s.name.String())
	}
	return "; is it " + strings.Join(names, " or ") + "?"
}

// distance returns how many letters differ between two names. It is 1 for the
// same name in another namespace.
func distance(a, b cluster.Name) int {
	if a.Name == b.Name {
		return 1
	}
	return text.Distance(a.String(), b.String())
}
