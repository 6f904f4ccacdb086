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

// reach is how this node reaches the others.
type reach struct {
	devices []nft.Device // on which packets may enter
	links   map[linkKey]link
	why     map[linkKey]string // of the others: why not
	macs    map[[6]byte]bool   // of nodes
	mac     map[linkKey][6]byte
	distant []linkKey           // of the others: those that a tunnel may reach
	outer   map[netip.Addr]bool // from which packets of the tunnel may come
}

type linkKey struct {
	node   string
	family route.Family
}

// link leads to a node.
type link struct {
	addr   netip.Addr
	device nft.Device
}

// equal reports whether two are the same.
func (r *reach) equal(o *reach) bool {
	return o != nil && slices.Equal(r.devices, o.devices) && mapsEqual(r.links, o.links) && mapsEqual(r.macs, o.macs) &&
		mapsEqual(r.outer, o.outer)
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

// addresses returns the addresses of the other nodes, the first one in each family.
func addresses(self string, nodes []*cluster.Node) (keys []linkKey, addrs []netip.Addr) {
	for _, n := range nodes {
		if n.Name == self {
			continue
		}
		for _, f := range route.Families() {
			i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return route.FamilyOf(a) == f })
			if i >= 0 {
				keys, addrs = append(keys, linkKey{n.Name, f}), append(addrs, n.Addresses[i])
			}
		}
	}
	return keys, addrs
}

// judge decides which nodes can be reached at layer 2. A hardware address that several hosts have is that of something
// between them, which forwards by addresses: a packet for a Service would not arrive.
func judge(keys []linkKey, n rtnl.Neighbourhood) *reach {
	r := &reach{
		links: map[linkKey]link{}, why: map[linkKey]string{}, macs: map[[6]byte]bool{}, mac: map[linkKey][6]byte{},
		outer: map[netip.Addr]bool{},
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

// add adds a node.
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
		r.links[key] = link{p.Addr, nft.Device(p.Device)}
		r.devices = append(r.devices, nft.Device(p.Device))
	}
}
