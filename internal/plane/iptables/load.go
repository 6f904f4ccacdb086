package iptables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The limits of one Service. Each frontend is a rule of a chain that all Services share, and iptables-nft-save lists a
// chain in time that grows with the square of its length: 10,000 rules take 0.3 s, 100,000 take 39 s. Each endpoint of
// a port is a chain of its own and a rule in the chain of the port, which is written as a whole: 5,000 take about 1 s,
// 10,000 take 3 s.
const (
	maxFrontends     = 10_000
	maxPortEndpoints = 5_000
	maxEndpoints     = 20_000
)

// Load bounds the contents of one write. Room is the number of lines of one restore.
func Load(room int) plane.Load {
	return plane.Load{Cost: linesOf, Piece: min(room, legacyPiece)}
}

// legacyPiece is the number of lines in one write with the legacy variant, where each write
// takes as long as a write of the whole table.
const legacyPiece = 40_000

// linesOf estimates the number of lines for the rules of a port.
func linesOf(p *route.Port) int {
	n := 3*(len(p.Cluster)+len(p.Local)) + len(p.Cluster) + len(p.Local) + 4
	for i := range p.Frontends {
		n += 2 + len(p.Frontends[i].Allow)
	}
	return n
}

// Excess returns the size of a Service that is too large for this plane, and the limit with
// its reason. Both are empty for other Services.
func Excess(svc *route.Service) (size, limit string) {
	endpoints := 0
	for i := range svc.Ports {
		p := &svc.Ports[i]
		n := max(len(p.Cluster), len(p.Local))
		if n > maxPortEndpoints {
			return fmt.Sprintf("%d endpoints of port %q", n, p.Name), atMost(maxPortEndpoints, "endpoints for a port")
		}
		endpoints += n
	}
	if size, limit = excessFrontends(svc); size == "" && endpoints > maxEndpoints {
		return fmt.Sprintf("%d endpoints of all ports", endpoints), atMost(maxEndpoints, "endpoints for a Service")
	}
	return size, limit
}

// excessFrontends is Excess for any number of endpoints.
func excessFrontends(svc *route.Service) (size, limit string) {
	frontends := 0
	for i := range svc.Ports {
		for j := range svc.Ports[i].Frontends {
			frontends += 1 + len(svc.Ports[i].Frontends[j].Allow)
		}
	}
	if frontends > maxFrontends {
		return fmt.Sprintf("%d addresses with ports and source ranges for them", frontends),
			atMost(maxFrontends, "of them for a Service")
	}
	return "", ""
}

func atMost(most int, of string) string {
	return fmt.Sprintf("rules of iptables serve at most %d %s, as more would keep all other Services waiting "+
		"for seconds; divide it into several Services, or use mode nftables", most, of)
}
