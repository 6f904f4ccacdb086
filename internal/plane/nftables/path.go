package nftables

import (
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Path returns the chains, maps and sets of our table that the first packet of a connection
// passes, behind the chain services, in which all paths begin, and without the maps of
// actions, which only lead from numbers to chains.
func Path(p plane.Passage) []string {
	l := newLayout()
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	s, a := &l.spaces[spaceOf(f)], l.shape(port, f)
	path := []string{mapOf(s.frontends)}
	if f.Restricted {
		path = append(path, "chain "+s.action(kindGuard, 0).chain(&l), "set "+s.allowed.Name)
		if p.KeptOut {
			return path
		}
		path = append(path, mapOf(s.guarded))
	}
	last, backends := a.first, s.backends
	if a.first.kind() == kindSplit {
		path = append(path, "chain "+a.first.chain(&l))
		if p.Inside {
			last = a.inside
			path = append(path, "chain "+s.inside.Name, mapOf(s.inside)) // the chain and the map have the same name
		} else {
			last, backends = a.outside, s.outsideBackends
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

// Strays returns the path of packets that are not to a frontend: those to a ClusterIP, and
// those to another address of a ServiceCIDR.
func Strays() (clusterIP, serviceCIDR []string) {
	l := newLayout()
	return []string{"set " + l.clusterIPs.Name, "chain " + rejected}, []string{"set " + l.serviceCIDRs.Name, "chain " + dropped}
}

func mapOf(s nft.Set) string { return "map " + s.Name }
