package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	maxElements = 1 << 16 // of one Service (docs/decisions/0011), and within the 16 bits of an action
	rangeCosts  = 16      // of a source range: the kernel adds 2,000 in 0.2 s, and 10,000 in 5 s (nft_set_pipapo.c)
	stickyCosts = 4       // of a backend of a port that remembers clients, which draw from 15 bits
)

// Load bounds what one write contains.
func Load() plane.Load {
	const piece = 4096 // elements: about 20 ms
	return plane.Load{Cost: elementsOf, Piece: piece}
}

// elementsOf estimates the number of elements for a port.
func elementsOf(p *route.Port) int {
	perFrontend := 1 + max(count(p, route.Cluster), count(p, route.Local))
	if p.Affinity > 0 {
		perFrontend = 2 + stickyCosts*max(len(p.Cluster), len(p.Local)) // its id, and numbers of both pools
	}
	n := len(p.Frontends) * perFrontend
	for i := range p.Frontends {
		n += rangeCosts * len(p.Frontends[i].Allow)
	}
	return n
}

// Excess returns the size of a Service that is too large for this plane, and the limit with
// its reason. Both are empty for other Services.
func Excess(svc *route.Service) (size, limit string) {
	elements := 0
	for i := range svc.Ports {
		elements += elementsOf(&svc.Ports[i])
	}
	if elements <= maxElements {
		return "", ""
	}
	return fmt.Sprintf("%d map elements for its addresses, ports, endpoints and source ranges", elements),
		fmt.Sprintf("mode nftables programs at most %d map elements for a Service, as the kernel needs seconds to list "+
			"more, for which all other Services would wait; divide it into several Services, or use fewer, larger source ranges",
			maxElements)
}
