package ebpf

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// shares implements Shares of plane.Facts for connections that are decided at sockets. Others follow from the facts
// of the packet plane. It knows neither loads nor which backends are new: without these, shares follow the weights.
func shares(by plane.Connection) plane.Shares {
	p, pool := decidedBy(by)
	if pool == nil {
		return plane.Shares{}
	}
	how := "by their weights"
	switch {
	case p.scheduler == bpf.ByHash:
		how = "to the one that a hash of the client chooses"
		if hash, known := hashOf(by); known {
			table := p.table(pool)
			return plane.Shares{Of: map[netip.AddrPort]float64{table[hash%uint32(len(table))]: 1}, How: how}
		}
	case p.scheduler == bpf.ByLoad:
		how = "to the one with the fewest open connections for its weight"
	case len(p.Weights) == 0:
		return plane.Shares{}
	}
	total := 0.0
	for _, at := range pool.weighted {
		total += float64(p.Weight(at))
	}
	of := map[netip.AddrPort]float64{}
	for _, at := range pool.weighted {
		of[at] = float64(p.Weight(at)) / total
	}
	return plane.Shares{Of: of, How: how}
}

// hashOf returns the hash by which programs choose a slot for a client.
func hashOf(by plane.Connection) (hash uint32, known bool) {
	switch {
	case !by.Node && by.Client.IsValid():
		return bpf.PodHash(by.Client), true
	case by.Node && by.NodeName != "":
		return bpf.NodeHash(by.NodeName), true
	}
	return 0, false
}
