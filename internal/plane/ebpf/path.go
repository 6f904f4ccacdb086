package ebpf

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// pathOver returns a function that lists the programs and maps that decide a connection or datagram at its socket. For all others it
// returns the path of the packet plane.
func pathOver(packets func(plane.Passage) []string) func(plane.Passage) []string {
	return func(p plane.Passage) []string {
		if !atSocket(p) {
			return packets(p)
		}
		port := &p.Service.Ports[p.Port]
		program := "program sluice_connect"
		if port.Protocol == cluster.UDP { // of an unconnected socket; a connected one has the path of TCP
			program = "program sluice_sendmsg"
		}
		path := []string{fmt.Sprint(program, uint8(port.Family))}
		if port.Frontends[p.Frontend].Kind == route.NodePort {
			path = append(path, "map "+bpf.NodeAddrs.String())
		}
		return append(path, "map "+bpf.Frontends.String(), "map "+bpf.Slots.String())
	}
}

// atSocket reports whether programs decide all connections of a client. A client that is not recognized as a pod on this node is not Inside,
// and so is served by packets.
func atSocket(p plane.Passage) bool {
	port := &p.Service.Ports[p.Port]
	clients := bpf.OfPods
	if p.Node {
		clients = bpf.OfNode
	}
	served := slices.ContainsFunc(port.Backends(p.Way.Pool), func(b netip.AddrPort) bool { return port.Weight(b) > 0 })
	frontend := &port.Frontends[p.Frontend]
	return p.Inside && served && exact(clients, p.Way) && decidable(port) && fits(p.Service) && !frontend.Restricted && balances(port.Protocol, frontend.Port) &&
		(frontend.Kind != route.NodePort || !p.To.IsValid() || isNodeAddr(p.To)) && (p.Node || !p.Client.IsValid() || knownPod(p, port))
}

// knownPod reports whether programs recognize a pod by its source address, and the pod is not a backend of the port.
func knownPod(p plane.Passage, port *route.Port) bool {
	if slices.ContainsFunc(port.Backends(p.Way.Pool), func(b netip.AddrPort) bool { return b.Addr() == p.Client }) {
		return false
	}
	known := func(prefix netip.Prefix) bool { return prefix.Contains(p.Client) }
	return p.Detector == nil || slices.ContainsFunc(podPrefixes(p.Detector, port.Family), known)
}
