package nftables

import "github.com/sluice-proxy/sluice/internal/plane"

// Path returns the chains, maps and sets of our table that the first packet of a connection
// passes, behind the chain services, in which all paths begin, and without the maps of
// actions, which only lead from numbers to chains.
func Path(p plane.Connection) []string {
	l := newLayout()
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	s, legs := spaceOf(f), legsOf(port, f)
	path := []string{l.mapOf(frontendElement.in(s))}
	if f.Restricted {
		path = append(path, "chain "+guard().chain(), l.setOf(allowedRanges))
		if p.KeptOut {
			return path
		}
		path = append(path, l.mapOf(guardedElement))
	}
	last, backends := legs[0], backendElement.in(s)
	if legs[1].action != 0 {
		path = append(path, "chain "+s.action(kindSplit, 0).chain())
		if p.Inside { // the chain and the map have the same name
			path = append(path, "chain "+l[insideElement.in(s)].Name, l.mapOf(insideElement.in(s)))
		} else {
			last, backends = legs[1], outsideBackendElement.in(s)
			path = append(path, l.mapOf(outsideElement.in(s)))
		}
	}
	chain := last.chain()
	path = append(path, "chain "+chain)
	switch {
	case last.kind() < kindPlain:
		return path
	case last.sticky():
		return append(path, "chain "+l[affinityElement.in(s)].Name, l.mapOf(affinityElement.in(s)), "chain "+keeps(chain),
			l.mapOf(clientElement), "chain "+recalls(l[backends].Name), l.mapOf(clientElement), l.mapOf(backends))
	}
	return append(path, "chain "+translates(l[backends].Name), l.mapOf(backends))
}

// Strays returns the path of packets that are not to a frontend: those to a ClusterIP, and
// those to another address of a ServiceCIDR.
func Strays() (clusterIP, serviceCIDR []string) {
	l := newLayout()
	return []string{l.setOf(clusterIPElement), "chain " + rejected},
		[]string{l.setOf(serviceCIDRElement), "chain " + dropped}
}

func (l *layout) mapOf(of object) string { return "map " + l[of].Name }
func (l *layout) setOf(of object) string { return "set " + l[of].Name }
