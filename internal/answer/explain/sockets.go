package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// sockets returns the open sockets as frontends that balance all clients alike.
func (a *asker) sockets() []found {
	var all []found
	for _, s := range a.view.Sockets {
		svc := a.view.Routes.Service(s.Service)
		if svc == nil {
			continue // it is being closed
		}
		i := slices.IndexFunc(svc.Ports, func(p route.Port) bool {
			return p.Name == s.Port && p.Protocol == s.Protocol && p.Family == route.FamilyOf(s.At.Addr())
		})
		if i < 0 {
			continue
		}
		to := route.Action{Verdict: route.Balance, Pool: s.Pool}
		if len(svc.Ports[i].Backends(s.Pool)) == 0 {
			to.Verdict = route.Reject
		}
		all = append(all, found{service: svc, port: &svc.Ports[i], socket: true, frontend: &route.Frontend{
			Addr: s.At.Addr(), Port: s.At.Port(), Pods: to, Node: to, Others: to,
		}})
	}
	return all
}

// atSockets answers for an address in a mode whose clients connect to sockets of the process.
func (a *asker) atSockets(to netip.Addr) []Case {
	matching := slices.DeleteFunc(a.sockets(), func(f found) bool { return f.frontend.Addr != to || !a.asks(f) })
	if len(matching) > 0 {
		return a.enterEach(to, matching)
	}
	out := Case{
		Destination: target(to, a.question.Port, a.question.Protocol), Client: a.client(to).Client,
		Verdict: Untouched, Why: "no socket of Sluice listens there; " + a.view.Plane.Sockets,
	}
	if n := a.survey(to); len(n.matching) > 0 {
		out.Why = portsAt(to, n.matching) + "; but " + a.view.Plane.Sockets
	}
	return []Case{out}
}

// atSocketsOf answers for a Service, or one of its ports, in a mode whose clients connect to sockets of the process.
func (a *asker) atSocketsOf(svc *route.Service, out *Answer) {
	q := a.question
	for _, f := range a.sockets() {
		at := slices.ContainsFunc(f.port.Frontends, func(f route.Frontend) bool { return q.Port == 0 || f.Port == q.Port })
		if f.service == svc && at && (q.PortName == "" || q.PortName == f.port.Name) &&
			(q.Protocol == 0 || q.Protocol == f.port.Protocol) {
			out.Cases = append(out.Cases, a.enter(f.frontend.Addr, f))
		}
	}
	if len(out.Cases) == 0 {
		out.Unanswered = fmt.Sprintf("no socket of Sluice is known for this port of Service %s: %s", svc.Name,
			a.view.Plane.Sockets)
	}
}
