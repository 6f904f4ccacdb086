package layer2

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A node is reached if it is a neighbour, and no other host has its hardware address.
func TestNewReach(t *testing.T) {
	eth0 := rtnl.Device{Name: "eth0", Index: 2}
	at := func(n, mac byte) *rtnl.Neighbour {
		return &rtnl.Neighbour{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, n}), Device: eth0, MAC: [6]byte{5: mac}, Resolved: mac != 0,
		}
	}
	silent, routed := at(6, 6), at(7, 0)
	silent.Resolved, routed.Routed = false, true
	keys := []linkKey{}
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h"} {
		keys = append(keys, linkKey{name, route.IPv4})
	}
	r := newReach(keys, rtnl.Neighbourhood{
		Uplinks: []rtnl.Device{eth0}, Gateways: []rtnl.Neighbour{*at(1, 1)},
		Peers: []*rtnl.Neighbour{at(2, 2), at(3, 1), at(4, 4), at(5, 4), silent, routed, nil},
	})
	reached := map[string]bool{}
	for key := range r.links {
		reached[key.node] = true
	}
	why := map[string]string{}
	for key, text := range r.why {
		why[key.node] = text
	}
	want := map[string]string{
		"c": "the gateway 10.0.0.1 has the same hardware address",
		"d": "node e has the same hardware address", "e": "node d has the same hardware address",
		"f": "10.0.0.6 does not answer on eth0", "g": "it is behind a gateway", "h": "there is no route",
	}
	macs := map[[6]byte]bool{{5: 2}: true, {5: 6}: true}
	if diff := cmp.Diff(map[string]bool{"b": true}, reached) + cmp.Diff(want, why) + cmp.Diff(macs, r.macs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
