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

// atSocket reports whether programs can decide all connections of a client. Without a Detector the client is one from outside, as nothing
// says whether it is a pod on this node.
func atSocket(p plane.Passage) bool {
	port := &p.Service.Ports[p.Port]
	clients := bpf.OfPods
	if p.Node {
		clients = bpf.OfNode
	}
	served := slices.ContainsFunc(port.Backends(p.Way.Pool), func(b netip.AddrPort) bool { return port.Weight(b) > 0 })
	frontend := &port.Frontends[p.Frontend]
	return p.Inside && served && exact(clients, p.Way) && decidable(port) && port.Affinity == 0 && !frontend.Restricted &&
		(frontend.Kind != route.NodePort || !p.To.IsValid() || isNodeAddr(p.To)) && (p.Node || !p.Client.IsValid() || knownPod(p, port))
}

// knownPod reports whether the source address of a pod shows that it is one, and that it is no backend.
func knownPod(p plane.Passage, port *route.Port) bool {
	if slices.ContainsFunc(port.Backends(p.Way.Pool), func(b netip.AddrPort) bool { return b.Addr() == p.Client }) {
		return false
	}
	known := func(prefix netip.Prefix) bool { return prefix.Contains(p.Client) }
	return p.Detector == nil || slices.ContainsFunc(podPrefixes(p.Detector, port.Family), known)
}
