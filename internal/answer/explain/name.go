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

// byName answers for a Service: where connections to its clusterIPs go, which are the addresses of its name in DNS.
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
	if a.view.Plane.Sockets != "" {
		a.atSocketsOf(svc, out)
		return
	}
	ips := a.clusterIPs(svc)
	if len(ips) == 0 {
		out.Unanswered = fmt.Sprintf("Service %s has no clusterIP of its own%s", svc.Name, a.ofSource())
		out.Notes = alsoAt(svc)
		return
	}
	for _, ip := range ips {
		out.Cases = append(out.Cases, a.at(ip)...)
	}
	if len(out.Cases) == 0 {
		out.Unanswered = fmt.Sprintf("Service %s has no port %s; it has %s", svc.Name, a.question.PortName,
			strings.Join(portsOf(svc), ", "))
		return
	}
	out.Notes = append(out.Notes, alsoAt(svc)...)
}

// noPort returns why an address has no case for a port by its name.
func (a *asker) noPort() string {
	to, port := a.question.Destination, a.question.PortName+slash(a.question.Protocol)
	if n := a.survey(to); len(n.others) > 0 {
		return fmt.Sprintf("%s has no port %s; %s", to, port, portsAt(to, n.others))
	}
	return fmt.Sprintf("no Service has a port %s at %s", port, to)
}

func (a *asker) ofSource() string {
	if len(a.sources) != 1 {
		return ""
	}
	return fmt.Sprintf(" in %s, the family of %s", route.FamilyOf(a.sources[0]), a.sources[0])
}

// clusterIPs returns the clusterIPs of the Service that the source can send to.
func (a *asker) clusterIPs(svc *route.Service) []netip.Addr {
	var out []netip.Addr
	for _, f := range frontendsOf(svc) {
		reachable := len(a.sources) == 0 || a.source(f.frontend.Addr).Is4() == f.frontend.Addr.Is4()
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

// eachOnce returns the distinct texts of frontends in order, without empty ones, in linear time.
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
	return []string{svc.Name.String() + " is also reached by " + few(all)}
}

// few lists the first of many texts, and how many more there are.
func few(all []string) string {
	const most = 8
	if n := len(all) - most; n > 0 {
		all = append(all[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(all, ", ")
}

// similar suggests a Service of the same name in another namespace, or with a name like the one in the question.
func (a *asker) similar() string {
	asked := a.question.Service
	asked.Namespace = cmp.Or(asked.Namespace, "default")
	var names []string
	sameName := ""
	for svc := range a.view.Routes.Services() {
		names = append(names, svc.Name.String())
		if svc.Name.Name == asked.Name {
			sameName = svc.Name.String()
		}
	}
	if nearest := cmp.Or(sameName, text.Nearest(asked.String(), names)); nearest != "" {
		return "; did you mean " + nearest + "?"
	}
	return ""
}

// resolve adds to the question the namespaces that it lacks, and finds the addresses of the client. The notes are for
// people.
func (a *asker) resolve() (notes []string, err error) {
	q := &a.question
	if q.Service.Name != "" && q.Service.Namespace == "" {
		if notes, err = a.resolveService(); err != nil {
			return nil, err
		}
	}
	switch {
	case q.Source.IsValid():
		a.sources = []netip.Addr{q.Source}
	case q.Pod.Name != "":
		err = a.resolvePod()
	}
	return notes, err
}

func (a *asker) resolveService() (notes []string, err error) {
	q := &a.question
	var known []cluster.Name
	for svc := range a.view.Routes.Services() {
		if svc.Name.Name == q.Service.Name {
			known = append(known, svc.Name)
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("there is no Service %s in any namespace%s", q.Service.Name, a.similar())
	}
	found, others, err := named("Service", known)
	if len(others) > 0 {
		notes = []string{"there is also " + few(text.Strings(others))}
	}
	q.Service = found
	return notes, err
}

// resolvePod finds the addresses of a pod, to which the destination has to fit.
func (a *asker) resolvePod() (err error) {
	q := &a.question
	var known []cluster.Name
	addrs := map[cluster.Name][]netip.Addr{}
	for pod, addr := range a.view.Routes.Pods() {
		if pod.Name != q.Pod.Name || q.Pod.Namespace != "" && pod.Namespace != q.Pod.Namespace {
			continue
		}
		known = append(known, pod)
		if !slices.Contains(addrs[pod], addr) {
			addrs[pod] = append(addrs[pod], addr)
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("the address of pod %s is not known: no Service selects it, or it runs on another node, "+
			"whose Sluice serves it; give its IP address as the source", nameText(q.Pod))
	}
	if q.Pod, _, err = named("pod", known); err != nil {
		return err
	}
	a.sources = addrs[q.Pod]
	if to := q.Destination; to.IsValid() && a.source(to).Is4() != to.Is4() {
		return fmt.Errorf("pod %s has no %s address that Sluice knows, only %s", q.Pod, route.FamilyOf(to),
			text.Join(a.sources, ", "))
	}
	return nil
}

// named returns which of the objects of a name is meant without a namespace: the one in the namespace default, as for
// kubectl, or else the only one. Others are those that it may be mistaken for.
func named(kind string, all []cluster.Name) (found cluster.Name, others []cluster.Name, err error) {
	slices.SortFunc(all, cluster.Name.Compare)
	all = slices.Compact(all)
	i := slices.IndexFunc(all, func(n cluster.Name) bool { return n.Namespace == "default" })
	if i < 0 && len(all) > 1 {
		return cluster.Name{Name: all[0].Name}, nil, fmt.Errorf("there are %d %ss called %s: give one of %s", len(all),
			kind, all[0].Name, few(text.Strings(all)))
	}
	found = all[max(i, 0)]
	return found, slices.DeleteFunc(all, func(n cluster.Name) bool { return n == found }), nil
}
