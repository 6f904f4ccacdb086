package layer2

import (
	"context"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// TunnelName is the name of the interface of the tunnel.
const TunnelName = "sluice-direct"

// Tunnel makes distant nodes neighbours. rtnl.Tunnel implements it.
type Tunnel interface {
	Neighbours(ctx context.Context, self rtnl.End, far []rtnl.End) ([]rtnl.Neighbour, error)
	Remove() (bool, error)
}

// addTunnel adds links to the distant nodes that answer in the tunnel. The tunnel exists while there is a distant node.
func (f *Follower) addTunnel(ctx context.Context, r *reach, nodes []*cluster.Node) error {
	self, keys, far := ends(f.opt.Self, nodes, r.distant)
	if f.opt.Port == 0 || len(far) == 0 {
		_, err := f.opt.Tunnel.Remove()
		return err
	}
	found, err := f.opt.Tunnel.Neighbours(ctx, self, far)
	if err != nil {
		return err
	}
	for i, n := range found {
		r.macs[n.MAC], r.outer[far[i].Outer] = true, true
		if !n.Resolved {
			r.why[keys[i]] += ", and does not answer in the tunnel"
			continue
		}
		delete(r.why, keys[i])
		r.links[keys[i]] = link{n.Addr, nft.Device(n.Device)}
		r.devices = append(r.devices, nft.Device(n.Device))
	}
	r.sortDevices()
	return nil
}

// ends returns the ends of the tunnel: of this node, and of the distant nodes. Outer addresses have the family of the
// first address of this node. Nodes without such an address are omitted.
func ends(self string, nodes []*cluster.Node, distant []linkKey) (here rtnl.End, keys []linkKey, far []rtnl.End) {
	i := slices.IndexFunc(nodes, func(n *cluster.Node) bool { return n.Name == self })
	if i < 0 || len(nodes[i].Addresses) == 0 {
		return here, nil, nil
	}
	here = rtnl.End{Name: self, Outer: nodes[i].Addresses[0]}
	all, addrs := addresses(self, nodes)
	for _, key := range distant {
		outer := slices.Index(all, linkKey{key.node, route.FamilyOf(here.Outer)})
		if outer < 0 {
			continue
		}
		keys = append(keys, key)
		far = append(far, rtnl.End{
			Name: key.node, Outer: addrs[outer], Inner: rtnl.Inner(key.node, addrs[slices.Index(all, key)]),
		})
	}
	return here, keys, far
}
