package nftables

import (
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
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
	last := ending{w.first, w.insidePool, s.sticky, s.backends}
	if w.first.kind() == kindSplit {
		path = append(path, "chain "+w.first.chain(&l))
		if p.Inside {
			last.way = w.inside
			path = append(path, "chain "+s.inside.Name, mapOf(s.inside)) // they share the name
		} else {
			last = ending{w.outside, w.outsidePool, s.outsideSticky, s.outsideBackends}
			path = append(path, mapOf(s.outside))
		}
	}
	path = append(path, "chain "+last.way.chain(&l))
	return append(path, last.path(p)...)
}

// Strays names what packets pass that are to no front: those to a ClusterIP, and
// those to another address of a ServiceCIDR.
func Strays() (clusterIP, serviceCIDR []string) {
	l := newLayout()
	return []string{"set " + l.clusterIPs.Name, "chain " + rejected}, []string{"set " + l.serviceCIDRs.Name, "chain " + dropped}
}

// ending is what comes of a way that is neither guard nor split.
type ending struct {
	way      way
	pool     route.Pool
	sticky   nft.Set
	backends nft.Set
}

// path is what a packet passes behind the chain of the way.
func (e ending) path(p plane.Passage) []string {
	name, port := p.Service.Name, &p.Service.Ports[p.Port]
	switch {
	case e.way.kind() < kindPlain:
		return nil
	case port.Affinity == 0:
		return []string{"chain " + translates(e.backends), mapOf(e.backends)}
	}
	path := []string{mapOf(e.sticky), "chain " + stickyChain(name, port, e.pool)}
	if p.Backend.IsValid() {
		path = append(path, "chain "+endpointChain(name, port, p.Backend))
	}
	return path
}

func mapOf(s nft.Set) string { return "map " + s.Name }
