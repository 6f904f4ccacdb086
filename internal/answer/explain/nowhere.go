package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// nowhere answers for connections that reach no frontend. The conditions come in the order of the rules.
func (a *asker) nowhere(to netip.Addr, n survey) Case {
	out := Case{
		Destination: target(to, a.question.Port, a.question.Protocol),
		Client:      a.client(to).Client,
	}
	set := func(b plane.Behaviour, more string) Case {
		out.Verdict, out.Why, out.Path = Verdict(b.Verdict), b.Why+more, b.Path
		return out
	}
	switch {
	case a.isLocal(to): // its other ports are the node's own
	case n.clusterIP && a.question.Protocol == ICMP:
		return set(a.view.Plane.Ping, "")
	case n.clusterIP:
		return set(a.view.Plane.OtherPort, "; "+portsAt(to, n.others))
	case inside(a.view.Routes.Host.ServiceCIDRs, to):
		cidr := text.Join(containing(a.view.Routes.Host.ServiceCIDRs, to), ", ")
		return set(a.view.Plane.Unallocated, " ("+cidr+")")
	}
	return set(plane.Behaviour{Verdict: plane.Untouched, Why: a.whyUntouched(to, n)}, "")
}

func (a *asker) whyUntouched(to netip.Addr, n survey) string {
	switch {
	case len(n.nodePorts) > 0:
		return fmt.Sprintf("%s is a nodePort of %s, but %s", n.nodePorts[0], n.nodePorts[0].service.Name,
			a.whyNoNodePorts(to))
	case len(n.others) > 0:
		return portsAt(to, n.others) + "; Sluice does not change its other ports"
	case n.backend != "":
		return fmt.Sprintf("it is a backend of %s and is reached directly", n.backend)
	case n.isNodePort:
		return fmt.Sprintf("%s serves nodePorts, but no Service has this one", to)
	}
	return "no programmed Service has this address"
}

func (a *asker) servesNodePorts(to netip.Addr) bool {
	n := a.view.Routes.Host.NodePorts
	if slices.Contains(n.Addrs, to) {
		return true
	}
	if to.IsLoopback() {
		return n.All127 && to.Is4() || n.Loopback6 && to.Is6()
	}
	return n.All(route.FamilyOf(to)) && a.isLocal(to)
}

// whyNoNodePorts returns the reason as a clause that follows "but".
func (a *asker) whyNoNodePorts(to netip.Addr) string {
	ports := a.view.Routes.Host.NodePorts
	switch {
	case a.servesNodePorts(to): // by sockets at ::1
		return fmt.Sprintf("%s serves only those with TCP and UDP", to)
	case to == netip.IPv6Loopback() && a.view.Plane.Loopback6 != "":
		return fmt.Sprintf("%s serves none: the loopback address of IPv6 does only if %s", to, a.view.Plane.Loopback6)
	case to.IsLoopback():
		return fmt.Sprintf("%s serves none: loopback addresses do only if %s", to, a.view.Plane.Loopback)
	case !a.isLocal(to):
		return fmt.Sprintf("%s is not an address of this node", to)
	}
	if served := filter(ports.Addrs, func(a netip.Addr) bool { return a.Is4() == to.Is4() }); len(served) > 0 {
		return fmt.Sprintf("%s serves none: nodePortAddresses selects only %s", to, text.Join(served, ", "))
	}
	return fmt.Sprintf("%s serves none: no %s address of this node does", to, route.FamilyOf(to))
}

// portsAt lists the frontends at an address, of one Service or several.
func portsAt(to netip.Addr, at []found) string {
	of := ""
	for i, f := range at {
		switch {
		case i == 0:
			of = fmt.Sprintf("%s is the %s of %s with %s", to, f.frontend.Kind, f.service.Name, f)
		case f.service == at[i-1].service:
			of += fmt.Sprintf(", %s", f)
		default:
			of += fmt.Sprintf("; the %s of %s with %s", f.frontend.Kind, f.service.Name, f)
		}
	}
	return of
}
