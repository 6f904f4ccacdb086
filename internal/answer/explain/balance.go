package explain

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// balance answers for connections that reach backends.
func (a *asker) balance(out *Case, f found, c client, p plane.Connection) {
	policy := policyOf(f, c)
	out.Policy = &policy
	nat := a.sourceNAT(f, c, p)
	out.SourceNAT = &nat
	if f.port.Affinity != 0 {
		out.Affinity = a.view.Plane.Affinity
	}
	if out.Affinity == "" {
		out.AffinitySeconds = int(math.Ceil(f.port.Affinity.Seconds()))
	}

	choices := a.view.Routes.Explain(f.service.Name, f.port, p.Way.Pool)
	pool, made := f.port.Backends(p.Way.Pool), chosen(choices)
	chances, why := a.chances(f.port, p)
	for i, b := range pool {
		backend := Backend{Address: b.String(), Chance: chances[i]}
		backend.Hairpin = b.Addr() == c.addr && slices.Contains(f.port.Here, c.addr) && a.view.Plane.SourceNAT == nil &&
			!f.socket
		if choice, ok := made[b]; ok {
			e := choice.Endpoint
			backend.Node, backend.Slice = e.Node, choice.Slice.Name.Name
			backend.Terminating = e.Terminating
			backend.Standing = Standing(choice.Share, time.Now())
		}
		out.Backends = append(out.Backends, backend)
	}
	out.LeftOut = leftOut(choices, time.Now())
	if out.Verdict, out.Why = Balanced, why; why == "" {
		out.Verdict, out.Why = Refused, "all backends have weight 0 and get no new connections"
	}
}

// chances returns the chance of each backend, and why; why is empty if all have weight 0.
func (a *asker) chances(port *route.Port, p plane.Connection) (chances []string, why string) {
	pool, shares := port.Backends(p.Way.Pool), a.shares(p)
	weight, total, alike := a.weights(port), 0, true
	for _, b := range pool {
		total += weight(b)
		alike = alike && weight(b) == weight(pool[0])
	}
	for _, b := range pool {
		chance := fmt.Sprintf("%d/%d", weight(b), total)
		if len(shares.Of) > 0 {
			chance = strconv.FormatFloat(100*shares.Of[b], 'f', 1, 64) + "%"
		}
		chances = append(chances, chance)
	}
	over := "over " + text.Count(len(pool), "backend") + ", "
	switch {
	case total == 0:
		return chances, ""
	case len(pool) == 1:
		return chances, over + "to which all connections go"
	case len(shares.Of) > 0:
		return chances, over + shares.How
	case alike:
		return chances, over + "each with the same chance"
	}
	return chances, over + "by their weights"
}

// shares returns the probabilities that the plane knows better than the weights do.
func (a *asker) shares(p plane.Connection) plane.Shares {
	switch {
	case a.view.Shares != nil:
		return a.view.Shares(p)
	case a.view.Plane.Shares != nil:
		return a.view.Plane.Shares(p)
	}
	return plane.Shares{}
}

// weights returns the weights of the backends of a port, all 1 in planes without weights.
func (a *asker) weights(p *route.Port) func(netip.AddrPort) int {
	if !a.view.Plane.Weights {
		return func(netip.AddrPort) int { return 1 }
	}
	most := uint16(math.MaxUint16)
	if slices.Contains(a.view.Plane.Unweighted, p.Scheduler) {
		most = 1
	}
	return func(b netip.AddrPort) int { return int(min(most, p.Weight(b))) }
}

// chosen returns the chosen endpoints by backend.
func chosen(choices []route.Choice) map[netip.AddrPort]route.Choice {
	out := map[netip.AddrPort]route.Choice{}
	for _, c := range choices {
		if c.Reason == route.Chosen {
			out[c.Backend] = c
		}
	}
	return out
}

// policyOf returns which endpoints are eligible. An external policy Local is neither for pods nor for this node.
func policyOf(f found, c client) Policy {
	at := f.frontend
	switch {
	case f.direct() && c.CountsAs == Outside:
		return Policy{"Direct", f.whyDirect(c.way(at).Pool)}
	case c.way(at).Pool == route.Local && f.preserved():
		return Policy{"Local", "annotation preserve-destination: only endpoints on this node"}
	case c.way(at).Pool == route.Local:
		return Policy{"Local", policyField(at) + " Local: only endpoints on this node"}
	case at.Kind == route.ClusterIP || at.Others.Verdict == route.Balance && at.Others.Pool == route.Cluster:
		return Policy{"Cluster", policyField(at) + " Cluster: any usable endpoint of the Service"}
	}
	who := "a pod"
	if c.CountsAs == Node {
		who = "this node"
	}
	what := "externalTrafficPolicy Local"
	if f.direct() {
		what = annotationDirect
	}
	return Policy{"ShortCircuit", what + " is for clients outside of the cluster; " +
		who + " reaches any usable endpoint of the Service"}
}

const annotationDirect = "external: direct"

// direct reports whether nodes pass connections of clients outside on to each other.
func (f found) direct() bool { return len(f.port.Owners) > 0 && f.frontend.External() }

// whyDirect says to which nodes connections go, and what this node does with those that stay.
func (f found) whyDirect(pool route.Pool) string {
	const most = 5
	var nodes []string
	for _, o := range f.port.Owners[:min(most, len(f.port.Owners))] {
		nodes = append(nodes, o.Node)
	}
	if more := len(f.port.Owners) - len(nodes); more > 0 {
		nodes = append(nodes, text.Count(more, "other"))
	}
	stay := "; those that stay on this node reach endpoints on it"
	if pool == route.Cluster {
		stay = "; this node has no endpoint, and those that stay on it, because it reaches no owner, reach any"
	}
	return annotationDirect + ": a hash of the client decides which node serves a connection (" +
		strings.Join(nodes, ", ") + ")" + stay
}

// sourceNAT returns whether backends see an address of this node, and why.
func (a *asker) sourceNAT(f found, c client, p plane.Connection) SourceNAT {
	if a.view.Plane.Proxied || f.socket {
		return SourceNAT{true, "the proxy process connects to the backend in place of the client"}
	}
	if a.ownVIP(f.frontend.Addr) && c.addr == f.frontend.Addr {
		return SourceNAT{true, "this node uses the address of the Service as its source, to which a backend cannot reply"}
	}
	if nat := a.view.Plane.SourceNAT; nat != nil {
		applied, why := nat(p)
		return SourceNAT{applied, why}
	}
	if !c.way(f.frontend).Masquerade {
		return SourceNAT{false, whyOriginal(f, c)}
	}
	external := f.frontend.Kind != route.ClusterIP
	why := "the client is not a pod, so the answer must come back through this node"
	switch {
	case external && policyOf(f, c).Name != "ShortCircuit":
		why = "externalTrafficPolicy Cluster: the answer must come back through this node"
	case a.view.Routes.Host.MasqueradeAll && !external:
		why = "masqueradeAll is set and applies to all connections to a clusterIP"
	case c.CountsAs == Node:
		why = "this node itself connects, and the source address must fit the route to the backend"
	}
	return SourceNAT{true, why}
}

func whyOriginal(f found, c client) string {
	switch {
	case c.CountsAs == Pod:
		return "pods keep their address, because replies to a pod return through its own node"
	case f.direct():
		return annotationDirect + " keeps the client's address"
	case f.frontend.Kind != route.ClusterIP:
		return "externalTrafficPolicy Local keeps the client's address"
	}
	return fmt.Sprintf("pods are not recognized in %s, so no client of a clusterIP gets source NAT", f.port.Family)
}

// path sets the path of the case, and of each backend the part after it.
func (a *asker) path(out *Case, f found, p plane.Connection) {
	if a.view.Plane.Path == nil || out.Verdict == Untouched || f.socket {
		return
	}
	p.KeptOut = out.Access != nil && !out.Access.Allowed
	out.Path = a.view.Plane.Path(p)
	if out.Verdict != Balanced {
		return
	}
	for i, b := range f.port.Backends(p.Way.Pool) {
		p.Backend = b
		out.Backends[i].Path = beyond(out.Path, a.view.Plane.Path(p))
	}
}

// connection returns the connection of a client, up to the choice of a backend.
func (a *asker) connection(f found, c client, to netip.Addr) plane.Connection {
	return plane.Connection{
		Service: f.service, Port: index(f.service.Ports, f.port), Frontend: index(f.port.Frontends, f.frontend),
		Inside: c.CountsAs != Outside, Node: c.CountsAs == Node, Way: f.way(c), Unserved: f.unserved,
		Client: c.addr, To: to, Detector: &a.view.Routes.Host.Detector,
	}
}

// beyond returns a path without the elements of its beginning in common; the whole path if it begins otherwise.
func beyond(common, whole []string) []string {
	if n := len(common); len(whole) >= n && slices.Equal(whole[:n], common) {
		return whole[n:]
	}
	return whole
}

// index returns the index of an element in its list.
func index[T any](list []T, at *T) int {
	for i := range list {
		if &list[i] == at {
			return i
		}
	}
	return -1
}

// Reason returns the reason why an endpoint is or is not in a pool, including its failed connections.
func Reason(c route.Choice, now time.Time) string {
	if c.Reason != route.Ejected {
		return c.Reason.String()
	}
	return Standing(c.Share, now)
}

// Standing describes the share of a backend to which connections failed: "ejected for 4 s: 7 connections of 3 clients
// failed; next trial in 6 s". It is empty for a backend with its whole share.
func Standing(s *cluster.Share, now time.Time) string {
	if s == nil {
		return ""
	}
	since := text.Duration(max(0, now.Sub(s.Since)).Truncate(time.Second))
	failed := fmt.Sprintf("%s of %s failed", text.Count(s.Failures, "connection"), text.Count(s.Clients, "client"))
	next := text.Duration(max(0, s.Next.Sub(now)).Round(time.Second))
	switch {
	case s.Part == 0 && s.Next.IsZero():
		return "on trial for " + since + ", waiting for the outcome of its connections: before, " + failed
	case s.Part == 0:
		return fmt.Sprintf("ejected for %s: %s; next trial in %s", since, failed, next)
	case s.Next.IsZero():
		return fmt.Sprintf("on trial for %s with %d/%d of its share: before, %s", since, s.Part, cluster.Whole, failed)
	}
	return fmt.Sprintf("has %d/%d of its share, more in %s: before, %s", s.Part, cluster.Whole, next, failed)
}
