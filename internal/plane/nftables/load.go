package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// maxElements is the largest number of map elements for one Service. Kernels that do not report
// the number of elements list a map for each comparison, in time that grows with the square
// of its size (docs/decisions/0011): 65,536 elements take 0.3 s, 300,000 take 12 s. It also keeps
// the number of backends within the 16 bits of an action.
const maxElements = 1 << 16

const (
	piece      = 4096 // elements: about 20 ms
	rangeCosts = 8    // elements; the cost of a range (nft_set_pipapo.c)
)

// maxPortRanges is the largest number of source ranges of a port at all its frontends: the
// kernel adds n ranges in time that grows with the square of n, and the ranges of a port
// are written at once. 2,000 take 0.2 s, 10,000 take 5 s.
const maxPortRanges = 2048

// Load bounds what one write contains.
func Load() plane.Load {
	return plane.Load{Cost: elementsOf, Piece: piece}
}

// elementsOf estimates the number of elements for a port.
func elementsOf(p *route.Port) int {
	perFrontend := 1 + max(len(p.Cluster), len(p.Local))
	if p.Affinity > 0 {
		perFrontend = 2 + len(p.Cluster) + len(p.Local) // its id, and numbers of both pools
	}
	return rangeCosts*rangesOf(p) + len(p.Frontends)*perFrontend
}

func rangesOf(p *route.Port) int {
	n := 0
	for i := range p.Frontends {
		n += len(p.Frontends[i].Allow)
	}
	return n
}

// Excess returns the size of a Service that is too large for this plane, and the limit with
// its reason. Both are empty for other Services.
func Excess(svc *route.Service) (size, limit string) {
	elements := 0
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if n := rangesOf(p); n > maxPortRanges {
			return fmt.Sprintf("%d source ranges at the addresses of port %q", n, p.Name),
				atMost(maxPortRanges, "source ranges for a port, as the kernel needs seconds to add more, "+
					"for which all other Services would wait; use fewer, larger ranges")
		}
		if n := max(len(p.Cluster), len(p.Local)); p.Affinity > 0 && n > maxSticky {
			return fmt.Sprintf("%d endpoints of port %q with session affinity", n, p.Name),
				atMost(maxSticky, "endpoints for a port with session affinity; "+
					"switch the affinity off, or divide the Service into several")
		}
		elements += elementsOf(p)
	}
	if elements <= maxElements {
		return "", ""
	}
	return fmt.Sprintf("%d map elements for its addresses, ports, endpoints and source ranges", elements),
		atMost(maxElements, "map elements for a Service, as the kernel needs seconds to list more, "+
			"for which all other Services would wait; divide it into several Services")
}

func atMost(n int, of string) string {
	return fmt.Sprintf("mode nftables programs at most %d %s", n, of)
}
