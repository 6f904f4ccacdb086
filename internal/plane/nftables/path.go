package nftables

import (
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Path returns the chains, maps and sets of our table that the first packet of a connection
// passes, behind the chain services, in which all paths begin, and without the maps of
// actions, which only lead from numbers to chains.
func Path(p plane.Passage) []string {
	l := newLayout()
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	s, legs := spaceOf(f), legsOf(port, f)
	path := []string{mapOf(l[frontendElement.in(s)])}
	if f.Restricted {
		path = append(path, "chain "+guard().chain(), "set "+l[allowedRanges].Name)
		if p.KeptOut {
			return path
		}
		path = append(path, mapOf(l[guardedElement]))
	}
	last, backends := legs[0], l[backendElement.in(s)]
	if legs[1].action != 0 {
		path = append(path, "chain "+s.action(kindSplit, 0).chain())
		if p.Inside {
			path = append(path, "chain "+l[insideElement.in(s)].Name, mapOf(l[insideElement.in(s)])) // the chain and the map have the same name
		} else {
			last, backends = legs[1], l[outsideBackendElement.in(s)]
			path = append(path, mapOf(l[outsideElement.in(s)]))
		}
	}
	chain := last.chain()
	path = append(path, "chain "+chain)
	switch {
	case last.kind() < kindPlain:
		return path
	case last.sticky():
		return append(path, "chain "+l[affinityElement.in(s)].Name, mapOf(l[affinityElement.in(s)]), "chain "+keeps(chain), mapOf(l[clientElement]),
			"chain "+recalls(backends), mapOf(l[clientElement]), mapOf(backends))
	}
	return append(path, "chain "+translates(backends), mapOf(backends))
}

// Strays returns the path of packets that are not to a frontend: those to a ClusterIP, and
// those to another address of a ServiceCIDR.
func Strays() (clusterIP, serviceCIDR []string) {
	l := newLayout()
	return []string{"set " + l[clusterIPElement].Name, "chain " + rejected}, []string{"set " + l[serviceCIDRElement].Name, "chain " + dropped}
}

func mapOf(s nft.Set) string { return "map " + s.Name }
