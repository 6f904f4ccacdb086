package nftables

import (
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Path names the chains, maps and sets of our table that the first packet of a
// connection passes: behind the chain services, which is the beginning for all,
// and without the maps of ways, which only lead from numbers to chains.
func Path(p plane.Passage) []string {
	l := newLayout()
	port := &p.Service.Ports[p.Port]
	f := &port.Fronts[p.Front]
	s, w := &l.spaces[spaceOf(f)], l.shape(port, f)
	path := []string{mapOf(s.fronts)}
	if f.Restricted {
		path = append(path, "chain "+s.way(kindGuard, 0).chain(&l), "set "+s.allowed.Name)
		if p.KeptOut {
			return path
		}
		path = append(path, mapOf(s.guarded))
	}
	last, backends := w.first, s.backends
	if w.first.kind() == kindSplit {
		path = append(path, "chain "+w.first.chain(&l))
		if p.Inside {
			last = w.inside
			path = append(path, "chain "+s.inside.Name, mapOf(s.inside)) // they share the name
		} else {
			last, backends = w.outside, s.outsideBackends
			path = append(path, mapOf(s.outside))
		}
	}
	chain := last.chain(&l)
	path = append(path, "chain "+chain)
	switch {
	case last.kind() < kindPlain:
		return path
	case last.sticky():
		return append(path, "chain "+s.affinity.Name, mapOf(s.affinity), "chain "+keeps(chain), mapOf(l.clients),
			"chain "+recalls(backends), mapOf(l.clients), mapOf(backends))
	}
	return append(path, "chain "+translates(backends), mapOf(backends))
}

// Strays names what packets pass that are to no front: those to a ClusterIP, and
// those to another address of a ServiceCIDR.
func Strays() (clusterIP, serviceCIDR []string) {
	l := newLayout()
	return []string{"set " + l.clusterIPs.Name, "chain " + rejected}, []string{"set " + l.serviceCIDRs.Name, "chain " + dropped}
}

func mapOf(s nft.Set) string { return "map " + s.Name }
