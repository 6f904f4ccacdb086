package layer2

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// reach has the links by which this node reaches other nodes.
type reach struct {
	devices []nft.Device // devices on which packets may enter
	links   map[linkKey]link
	why     map[linkKey]string // the reason why a node is not reached
	macs    map[[6]byte]bool   // hardware addresses that belong to one node only
	mac     map[linkKey][6]byte
	probes  map[linkKey]rtnl.Neighbour // neighbours that this node probes, and answers
	self    []netip.Addr               // the addresses of this node from which it probes, one of a family at most
	distant []linkKey                  // unreached nodes that a tunnel may reach
	outer   map[netip.Addr]bool        // accepted source addresses of tunnel packets
}

// linkKey is a node in an IP family.
type linkKey struct {
	node   string
	family route.Family
}

// link is the address of a node, and the device that leads to it.
type link struct {
	addr   netip.Addr
	device nft.Device
}

// equal reports whether the tables for both would be the same.
func (r *reach) equal(o *reach) bool {
	return o != nil && slices.Equal(r.devices, o.devices) && mapsEqual(r.links, o.links) && mapsEqual(r.macs, o.macs) &&
		mapsEqual(r.outer, o.outer) && mapsEqual(r.probes, o.probes) && slices.Equal(r.self, o.self)
}

func mapsEqual[K, V comparable](a, b map[K]V) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, has := b[k]; !has || v != w {
			return false
		}
	}
	return true
}

// addresses returns the first address of each other node in each family, and their keys.
func addresses(self string, nodes []*cluster.Node) (keys []linkKey, addrs []netip.Addr) {
	for _, n := range nodes {
		if n.Name == self {
			continue
		}
		for _, a := range firsts(n) {
			keys, addrs = append(keys, linkKey{n.Name, route.FamilyOf(a)}), append(addrs, a)
		}
	}
	return keys, addrs
}

// firsts returns the first address of a node in each family that it has.
func firsts(n *cluster.Node) (addrs []netip.Addr) {
	for _, f := range route.Families() {
		i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return route.FamilyOf(a) == f })
		if i >= 0 {
			addrs = append(addrs, n.Addresses[i])
		}
	}
	return addrs
}

// newReach returns the nodes that can be reached at layer 2. If several hosts have the same hardware address, it
// belongs to a device between them that forwards by IP address. That device would not deliver packets for a Service to
// a node.
func newReach(keys []linkKey, n rtnl.Neighbourhood) *reach {
	r := &reach{
		links: map[linkKey]link{}, why: map[linkKey]string{}, macs: map[[6]byte]bool{}, mac: map[linkKey][6]byte{},
		outer: map[netip.Addr]bool{}, probes: map[linkKey]rtnl.Neighbour{},
	}
	holders := map[[6]byte][]string{}
	for _, g := range n.Gateways {
		holders[g.MAC] = append(holders[g.MAC], "the gateway "+g.Addr.String())
	}
	for i, p := range n.Peers {
		if name := "node " + keys[i].node; p != nil && !slices.Contains(holders[p.MAC], name) {
			holders[p.MAC] = append(holders[p.MAC], name)
		}
	}
	for _, d := range n.Uplinks {
		r.devices = append(r.devices, nft.Device(d))
	}
	for i, p := range n.Peers {
		r.add(keys[i], p, holders)
	}
	r.sortDevices()
	return r
}

func (r *reach) sortDevices() {
	slices.SortFunc(r.devices, func(a, b nft.Device) int { return cmp.Compare(a.Index, b.Index) })
	r.devices = slices.Compact(r.devices)
}

// add adds a link to a node, or the reason why it is not reached. p is nil if there is no route.
func (r *reach) add(key linkKey, p *rtnl.Neighbour, holders map[[6]byte][]string) {
	if p == nil {
		r.why[key] = "there is no route"
		return
	}
	others := slices.DeleteFunc(slices.Clone(holders[p.MAC]), func(name string) bool { return name == "node "+key.node })
	known := p.MAC != [6]byte{}
	if known {
		r.mac[key] = p.MAC
	}
	if known && len(others) == 0 {
		r.macs[p.MAC] = true
	}
	switch {
	case p.Routed:
		r.why[key], r.distant = "it is behind a gateway", append(r.distant, key)
	case known && len(others) > 0:
		r.why[key], r.distant = others[0]+" has the same hardware address", append(r.distant, key)
	case !p.Resolved:
		r.why[key] = fmt.Sprintf("%s does not answer on %s", p.Addr, p.Device.Name)
	default:
		r.links[key], r.probes[key] = link{p.Addr, nft.Device(p.Device)}, *p
		r.devices = append(r.devices, nft.Device(p.Device))
	}
}
