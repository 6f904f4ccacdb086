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

// pathOver returns a function that lists the programs and maps that decide a connection or datagram at its socket. For
// all others it returns the path of the packet plane.
func pathOver(packets func(plane.Connection) []string) func(plane.Connection) []string {
	return func(p plane.Connection) []string {
		port, pool := decidedBy(p)
		if pool == nil {
			return packets(p)
		}
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

// decidedBy returns the pool from which programs choose for a connection, and its port; nil if packets serve it. A
// client that is not recognized as a pod on this node is not Inside.
func decidedBy(p plane.Connection) (*port, *pool) {
	frontend := &p.Service.Ports[p.Port].Frontends[p.Frontend]
	if !p.Inside || p.Unserved || frontend.Kind == route.NodePort && p.To.IsValid() && !isNodeAddr(p.To) {
		return nil, nil
	}
	clients := bpf.OfPods
	if p.Node {
		clients = bpf.OfNode
	}
	for _, port := range portsOf(p.Service) {
		pool := port.poolOf(frontend, clients)
		if pool != nil && (p.Node || !p.Client.IsValid() || knownPod(p, pool)) {
			return port, pool
		}
	}
	return nil, nil
}

// knownPod reports whether programs recognize a pod by its source address, and the pod is not a backend of the pool.
func knownPod(p plane.Connection, pool *pool) bool {
	if slices.ContainsFunc(pool.backends, func(b netip.AddrPort) bool { return b.Addr() == p.Client }) {
		return false
	}
	return p.Detector == nil || isPod(p.Detector, p.Client)
}
