package ebpf

import (
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// pathOver returns a function with the programs and maps that decide a TCP connection when its socket connects. Others, among
// them all of UDP, which is for packets where sockets cannot be destroyed, have the path of the packet plane.
func pathOver(packets func(plane.Passage) []string) func(plane.Passage) []string {
	return func(p plane.Passage) []string {
		port := &p.Service.Ports[p.Port]
		clients := bpf.OfPods
		if p.Node {
			clients = bpf.OfNode
		}
		f := &port.Frontends[p.Frontend]
		if !p.Inside || f.Restricted || port.Protocol != cluster.TCP || !decidable(port) || !exact(clients, p.Way) || len(port.Backends(p.Way.Pool)) == 0 {
			return packets(p)
		}
		path := []string{"program sluice_connect4"}
		if port.Family == route.IPv6 {
			path = []string{"program sluice_connect6"}
		}
		if f.Kind == route.NodePort {
			path = append(path, "map "+bpf.NodeAddrs.String())
		}
		return append(path, "map "+bpf.Frontends.String(), "map "+bpf.Slots.String())
	}
}
