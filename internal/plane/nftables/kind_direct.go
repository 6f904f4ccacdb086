package nftables

import (
	"context"
	"net"

	"github.com/sluice-proxy/sluice/internal/direct/layer2"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// openDirect opens the part that passes connections of clients outside on to other nodes. beside is the Conn of the
// plane.
func openDirect(s plane.Setup, beside *nft.Conn) (plane.Part, func() *plane.Direct, error) {
	if s.Peers == nil {
		return plane.Part{}, nil, nil
	}
	conn, err := nft.Open(nft.Options{NetNS: s.NetNS, Beside: beside})
	if err != nil {
		return plane.Part{}, nil, err
	}
	port, links := s.Config.DirectTunnel, rtnl.New(s.NetNS)
	f := layer2.New(layer2.Options{
		Tunnel: rtnl.NewTunnel(s.NetNS, layer2.TunnelName, port), Port: port,
		Kernel: conn, Room: conn.Room, Watch: conn.Watch, Peers: s.Peers, Self: s.Config.NodeName,
		Neighbours: links.Neighbourhood, Probe: links.Probe,
		Failed: func(err error) {
			s.Log.Warn("Cannot pass connections of clients outside on to other nodes, retrying", "error", err)
		},
		Moved: func(node string, from, to net.HardwareAddr) {
			s.Log.Warn("The hardware address of another node has changed; what it owns goes there",
				"peer", node, "from", from.String(), "to", to.String())
		},
	})
	return plane.Part{Follower: f, Run: f.Run, Close: conn.Close}, f.Status, nil
}

// removeDirect removes the tables and the tunnel of this part.
func removeDirect(ctx context.Context, s plane.Setup) ([]string, error) {
	conn, err := nft.Open(nft.Options{NetNS: s.NetNS})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return layer2.Remove(ctx, conn, rtnl.NewTunnel(s.NetNS, layer2.TunnelName, 0))
}
