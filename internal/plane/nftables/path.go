package nftables

import "github.com/sluice-proxy/sluice/internal/plane"

// Path returns the chains, maps and sets that the first packet of a connection passes behind the chain
// services, without the maps that lead from actions to chains.
func Path(p plane.Connection) []string {
	l, f := newLayout(), &place(nil, &p.Service.Ports[p.Port])[p.Frontend]
	path := []string{l.mapOf(f.key.of), "chain " + f.first().chain()}
	if f.Restricted {
		path = append(path, l.setOf(allowedRanges))
	}
	if p.KeptOut {
		return path
	}
	last, backends := f.legs[0], backendElement.in(f.space)
	switch {
	case f.split() && p.Inside: // the chain and the map have the same name
		inside := insideElement.in(f.space)
		path = append(path, "chain "+l[inside].Name, l.mapOf(inside), "chain "+last.chain())
	case f.split():
		last, backends = f.legs[1], outsideBackendElement.in(f.space)
		path = append(path, l.mapOf(outsideElement.in(f.space)), "chain "+last.chain())
	case f.Restricted && last.kind() < kindPlain:
		path = append(path, "chain "+last.chain())
	}
	switch {
	case last.kind() < kindPlain:
		return path
	case last.sticky():
		id := affinityElement.in(f.space)
		return append(path, "chain "+l[id].Name, l.mapOf(id), "chain "+keeps+last.chain(),
			l.mapOf(clientElement), "chain "+lookups+l[backends].Name, l.mapOf(clientElement), l.mapOf(backends))
	}
	return append(path, "chain "+translates+l[backends].Name, l.mapOf(backends))
}

func (l *layout) mapOf(of object) string { return "map " + l[of].Name }
func (l *layout) setOf(of object) string { return "set " + l[of].Name }
