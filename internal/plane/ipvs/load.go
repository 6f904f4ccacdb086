package ipvs

import (
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Load bounds the contents of one write.
func Load() plane.Load { return plane.Load{Cost: cost, Piece: roomDefault} }

// cost estimates the number of entries of a port.
func cost(p *route.Port) int {
	n, backends := 0, max(len(p.Cluster), len(p.Local))
	for i := range p.Frontends {
		n += 4 + backends + len(p.Frontends[i].Allow)
	}
	return n
}
