package explain

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// balance answers for connections that reach backends.
func (a *asker) balance(out *Case, f found, c client) {
	w := c.way(f.frontend)
	policy := policyOf(f, c)
	out.Policy = &policy
	nat := a.sourceNAT(f, c)
	out.SourceNAT = &nat
	if f.port.Affinity != 0 {
		out.Affinity = a.view.Plane.Affinity
	}
	if out.Affinity == "" {
		out.AffinitySeconds = seconds(f.port.Affinity)
	}

	choices := a.view.Routes.Explain(f.service.Name, f.port, w.Pool)
	pool, made := f.port.Backends(w.Pool), chosen(choices)
	weight, total, alike := a.weights(f.port), 0, true
	for _, b := range pool {
		total += weight(b)
		alike = alike && weight(b) == weight(pool[0])
	}
	for _, b := range pool {
		backend := Backend{Address: b.String(), Chance: fmt.Sprintf("%d/%d", weight(b), total)}
		backend.Hairpin = b.Addr() == c.addr && slices.Contains(f.port.Here, c.addr) && a.view.Plane.SourceNAT == nil
		if choice, ok := made[b]; ok {
			e := choice.Endpoint
			backend.Node, backend.Slice = e.Node, choice.Slice.Name.Name
			backend.Terminating = e.Terminating
		}
		out.Backends = append(out.Backends, backend)
	}
	shared := a.shares(f, c, out.Backends)
	out.LeftOut = leftOut(choices)
	out.Verdict = Balanced
	out.Why = fmt.Sprintf("over %s, each with the same chance", text.Count(len(pool), "backend"))
	switch {
	case total == 0:
		out.Verdict, out.Why = Refused, "all backends have weight 0, so that they get no new connections"
	case len(pool) == 1:
		out.Why = "over 1 backend, to which all connections go"
	case !alike:
		out.Why = fmt.Sprintf("over %s, by their weights", text.Count(len(pool), "backend"))
	}
	if shared && len(pool) > 1 && total > 0 {
		out.Why = fmt.Sprintf("over %s, with the chances that the next connection has", text.Count(len(pool), "backend"))
	}
}

// shares sets the chances of backends that the plane knows better than their weights do. It returns
// false if it knows none.
func (a *asker) shares(f found, c client, backends []Backend) bool {
	if a.view.Shares == nil {
		return false
	}
	shares := a.view.Shares(f.passage(c.CountsAs, c.way(f.frontend)), c.addr)
	if len(shares) == 0 {
		return false
	}
	for i := range backends {
		at, _ := netip.ParseAddrPort(backends[i].Address) // it was printed from one
		backends[i].Chance = strconv.FormatFloat(100*shares[at], 'f', 1, 64) + "%"
	}
	return true
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

// policyOf returns which endpoints are eligible for a client. An external policy
// Local applies neither to pods nor to this node.
func policyOf(f found, c client) Policy {
	at := f.frontend
	switch {
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
	return Policy{"ShortCircuit", "externalTrafficPolicy Local is for clients outside of the cluster; " +
		who + " reaches any usable endpoint of the Service"}
}

// sourceNAT returns whether backends see an address of this node, and why.
func (a *asker) sourceNAT(f found, c client) SourceNAT {
	if a.view.Plane.Proxied {
		return SourceNAT{true, "the proxy process connects to the backend in place of the client"}
	}
	if a.ownVIP(f.frontend.Addr) && c.addr == f.frontend.Addr {
		return SourceNAT{true, "this node uses the address of the Service as its source, to which a backend cannot reply"}
	}
	if nat := a.view.Plane.SourceNAT; nat != nil {
		applied, why := nat(f.passage(c.CountsAs, c.way(f.frontend)))
		return SourceNAT{applied, why}
	}
	if !c.way(f.frontend).Masquerade {
		return SourceNAT{false, whyOriginal(f, c)}
	}
	external := f.frontend.Kind != route.ClusterIP
	why := "the client is not a pod, so the answer must come back through this node"
	switch {
	case external && policyOf(f, c).Name == "Cluster":
		why = "externalTrafficPolicy Cluster: the answer must come back through this node"
	case a.view.Routes.Host.MasqueradeAll && !external:
		why = "masqueradeAll is set, which is for everything sent to a clusterIP"
	case c.CountsAs == Node:
		why = "sent by this node itself, so that the source address fits the route to the backend"
	}
	return SourceNAT{true, why}
}

func whyOriginal(f found, c client) string {
	switch {
	case c.CountsAs == Pod:
		return "pods keep their address, as answers to them pass the node they are on"
	case f.frontend.Kind != route.ClusterIP:
		return "externalTrafficPolicy Local keeps the client's address"
	}
	return fmt.Sprintf("pods are not recognized in %s, so no client of a clusterIP gets source NAT", f.port.Family)
}
