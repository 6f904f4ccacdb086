package layer2

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fakeTunnel has some ends that answer.
type fakeTunnel struct {
	answer  map[string]bool
	self    rtnl.End
	far     []rtnl.End
	removed int
}

func (f *fakeTunnel) Neighbours(_ context.Context, self rtnl.End, far []rtnl.End) (list []rtnl.Neighbour, err error) {
	f.self, f.far = self, far
	for i, e := range far {
		list = append(list, rtnl.Neighbour{
			Addr: e.Inner, Device: rtnl.Device{Name: TunnelName, Index: 1}, MAC: [6]byte{5: byte(i)}, Resolved: f.answer[e.Name],
		})
	}
	return list, nil
}

func (f *fakeTunnel) Remove() (bool, error) {
	f.removed++
	return true, nil
}

// Distant nodes are reached if they answer in the tunnel, by their addresses in the family of the first address of this
// node. Nodes without such an address are not reached. Without a distant node the tunnel is removed.
func TestAddTunnel(t *testing.T) {
	addr := netip.MustParseAddr
	node := func(name string, addrs ...string) *cluster.Node {
		n := &cluster.Node{Name: name}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, addr(a))
		}
		return n
	}
	nodes := []*cluster.Node{
		node("a", "10.0.0.1", "fd00::1"), node("b", "fd00::2", "10.0.0.2"), node("c", "10.0.0.3"), node("d", "fd00::4"),
	}
	b4, b6 := linkKey{"b", route.IPv4}, linkKey{"b", route.IPv6}
	c4, d6 := linkKey{"c", route.IPv4}, linkKey{"d", route.IPv6}
	r := newReach(nil, rtnl.Neighbourhood{Uplinks: []rtnl.Device{{Name: "eth0", Index: 2}}})
	for _, key := range []linkKey{b4, b6, c4, d6} {
		r.add(key, &rtnl.Neighbour{Routed: true}, nil)
	}
	tunnel := &fakeTunnel{answer: map[string]bool{"b": true}}
	f := New(Options{Self: "a", Tunnel: tunnel, Port: 10264})
	if err := f.addTunnel(t.Context(), r, nodes); err != nil {
		t.Fatal(err)
	}
	inner6 := rtnl.Inner("b", addr("fd00::2"))
	device := nft.Device{Name: TunnelName, Index: 1}
	far := []rtnl.End{
		{Name: "b", Outer: addr("10.0.0.2"), Inner: addr("10.0.0.2")},
		{Name: "b", Outer: addr("10.0.0.2"), Inner: inner6},
		{Name: "c", Outer: addr("10.0.0.3"), Inner: addr("10.0.0.3")},
	}
	want := &reach{
		devices: []nft.Device{device, {Name: "eth0", Index: 2}},
		links:   map[linkKey]link{b4: {addr("10.0.0.2"), device}, b6: {inner6, device}},
		why: map[linkKey]string{
			c4: "it is behind a gateway, and does not answer in the tunnel", d6: "it is behind a gateway",
		},
		macs:    map[[6]byte]bool{{5: 0}: true, {5: 1}: true, {5: 2}: true},
		mac:     map[linkKey][6]byte{},
		probes:  map[linkKey]rtnl.Neighbour{},
		distant: []linkKey{b4, b6, c4, d6},
		outer:   map[netip.Addr]bool{addr("10.0.0.2"): true, addr("10.0.0.3"): true},
	}
	same := cmp.Options{cmp.AllowUnexported(reach{}, link{}, linkKey{}), cmpopts.EquateComparable(netip.Addr{})}
	if diff := cmp.Diff(want, r, same) + cmp.Diff(far, tunnel.far, same); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if self := (rtnl.End{Name: "a", Outer: addr("10.0.0.1")}); tunnel.self != self {
		t.Errorf("this end is %v, want %v", tunnel.self, self)
	}
	if err := f.addTunnel(t.Context(), &reach{}, nodes); err != nil || tunnel.removed != 1 {
		t.Errorf("without distant nodes: %v, removed %d times", err, tunnel.removed)
	}
	f.opt.Port = 0
	if err := f.addTunnel(t.Context(), r, nodes); err != nil || tunnel.removed != 2 {
		t.Errorf("without a port: %v, removed %d times", err, tunnel.removed)
	}
}
