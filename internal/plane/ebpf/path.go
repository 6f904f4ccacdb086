package ebpf

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// pathOver returns a function with the programs and maps that decide a connection when its socket connects, or a datagram when it
// is sent. Others, among them those with session affinity, whose first one is for packets, have the path of the packet plane.
func pathOver(packets func(plane.Passage) []string) func(plane.Passage) []string {
	return func(p plane.Passage) []string {
		if !atSocket(p) {
			return packets(p)
		}
		port := &p.Service.Ports[p.Port]
		program := "program sluice_connect"
		if port.Protocol == cluster.UDP { // of sockets that connect it is that of TCP
			program = "program sluice_sendmsg"
		}
		path := []string{fmt.Sprint(program, uint8(port.Family))}
		if port.Frontends[p.Frontend].Kind == route.NodePort {
			path = append(path, "map "+bpf.NodeAddrs.String())
		}
		return append(path, "map "+bpf.Frontends.String(), "map "+bpf.Slots.String())
	}
}

// atSocket reports whether programs can decide all connections of a client.
func atSocket(p plane.Passage) bool {
	port := &p.Service.Ports[p.Port]
	clients := bpf.OfPods
	if p.Node {
		clients = bpf.OfNode
	}
	served := slices.ContainsFunc(port.Backends(p.Way.Pool), func(b netip.AddrPort) bool { return port.Weight(b) > 0 })
	return p.Inside && served && exact(clients, p.Way) && decidable(port) && port.Affinity == 0 && !port.Frontends[p.Frontend].Restricted
}
