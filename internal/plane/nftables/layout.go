package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// TableName is the name of both tables, "ip sluice" and "ip6 sluice".
const TableName = "sluice"

// family is one row of all that differs between IPv4 and IPv6.
type family struct {
	ip    route.Family
	table nft.Table
}

func rows(enabled []route.Family) []family {
	known := map[route.Family]nft.Family{route.IPv4: nft.IP4, route.IPv6: nft.IP6}
	var all []family
	for _, ip := range enabled {
		all = append(all, family{ip, nft.Table{Family: known[ip], Name: TableName}})
	}
	return all
}

func everyFamily() []family { return rows([]route.Family{route.IPv4, route.IPv6}) }

// space is one of the two ways in which a front is recognised, each with maps
// of its own: by address, protocol and port, or, for NodePorts, by protocol and
// port on any of the node's addresses.
type space struct {
	name string // prefix of the names of its maps and chains
	base uint16 // added to the kind in the major number of a way

	fronts          nft.Set // key -> way
	inside          nft.Set // key -> way of clients on this node, of fronts that tell them apart
	outside         nft.Set // key -> way of all others, of fronts that tell them apart
	guarded         nft.Set // key -> way of clients that were let in
	allowed         nft.Set // key . source: clients to let in
	backends        nft.Set // key . index -> backend
	outsideBackends nft.Set // the same for ways out of outside
	affinity        nft.Set // key -> id of a port that remembers its clients
}

// The two spaces, as indices into layout.spaces.
const (
	byAddress = iota
	byNodePort
)

// layout names all sets and maps of a table; it is the same for both families.
type layout struct {
	spaces       [2]space
	clusterIPs   nft.Set    // known ClusterIPs: their other ports are refused
	serviceCIDRs nft.Set    // their other addresses are dropped
	nodeIPs      nft.Set    // where NodePorts are served, unless everywhere
	podCIDRs     nft.Set    // clients that count as pods
	hairpin      nft.Set    // backend . backend: connections of a backend to itself
	clients      nft.Set    // id of a port . client -> number of the backend it keeps
	ways         [3]nft.Set // way -> chain, by level
}

// The levels at which a way is looked up. The kernel refuses maps through which
// a chain could lead back to itself, so each level has a map of its own.
const (
	atOnce     = iota // any way
	afterGuard        // not a guard
	afterSplit        // neither guard nor split
)

func newLayout() layout {
	addr := []nft.Type{nft.Addr}
	ways := func(name string) nft.Set {
		return nft.Set{Name: name, Key: []nft.Type{nft.ClassID}, Data: []nft.Type{nft.Verdict}}
	}
	return layout{
		spaces: [2]space{
			newSpace("", 0x100, nft.Addr, nft.Proto, nft.Port),
			newSpace("nodeport-", 0x200, nft.Proto, nft.Port),
		},
		clusterIPs:   nft.Set{Name: "cluster-ips", Key: addr},
		serviceCIDRs: nft.Set{Name: "service-cidrs", Key: addr, Interval: true},
		nodeIPs:      nft.Set{Name: "node-ips", Key: addr},
		podCIDRs:     nft.Set{Name: "pod-cidrs", Key: addr, Interval: true},
		hairpin:      nft.Set{Name: "hairpin", Key: []nft.Type{nft.Addr, nft.Addr}},
		clients:      clientMap(),
		ways:         [3]nft.Set{ways("ways"), ways("ways-after-guard"), ways("ways-after-split")},
	}
}

func newSpace(name string, base uint16, key ...nft.Type) space {
	way, backend := []nft.Type{nft.ClassID}, []nft.Type{nft.Addr, nft.Port}
	with := func(t nft.Type) []nft.Type { return append(append([]nft.Type{}, key...), t) }
	return space{
		name: name, base: base,
		fronts:          nft.Set{Name: name + "fronts", Key: key, Data: way},
		inside:          nft.Set{Name: name + "inside", Key: key, Data: way},
		outside:         nft.Set{Name: name + "outside", Key: key, Data: way},
		guarded:         nft.Set{Name: name + "guarded", Key: key, Data: way},
		allowed:         nft.Set{Name: name + "allowed", Key: with(nft.Addr), Interval: true},
		backends:        nft.Set{Name: name + "backends", Key: with(nft.Index), Data: backend},
		outsideBackends: nft.Set{Name: name + "outside-backends", Key: with(nft.Index), Data: backend},
		affinity:        nft.Set{Name: name + "affinity", Key: key, Data: []nft.Type{nft.ClassID}},
	}
}

// sets lists all of them, in the order in which they are made.
func (l *layout) sets() []*nft.Set {
	all := []*nft.Set{&l.ways[atOnce], &l.ways[afterGuard], &l.ways[afterSplit], &l.clusterIPs, &l.serviceCIDRs, &l.nodeIPs, &l.podCIDRs, &l.hairpin, &l.clients}
	for i := range l.spaces {
		all = append(all, l.spaces[i].sets()...)
	}
	return all
}

func (s *space) sets() []*nft.Set {
	return []*nft.Set{
		&s.backends, &s.outsideBackends, &s.affinity, &s.allowed, &s.guarded, &s.inside, &s.outside, &s.fronts,
	}
}

// key lists the fields of a packet that a front of this space is found by.
func (s *space) key(f nft.Family) []nft.Field {
	if s.base == 0x100 {
		return []nft.Field{nft.Destination(f), nft.L4Proto(), nft.DestinationPort()}
	}
	return []nft.Field{nft.L4Proto(), nft.DestinationPort()}
}

// way is what the maps of fronts hold: what to do, and among how many
// backends; sticky.go says what one holds that remembers clients. nft prints it as "major:minor", the kind and the number, both in
// hexadecimal. The map ways, which never grows with the number of services,
// leads from it to a chain. Were the fronts themselves a verdict map, the
// kernel would walk all of them after each change to one (nf_tables_api.c,
// nft_table_validate).
type way uint32

// The kinds of ways. Those below kindPlain are the same in both spaces.
const (
	kindReject     = 0x1
	kindDrop       = 0x2
	kindPlain      = 0x10 // balance
	kindMasquerade = 0x11 // balance, with source NAT
	kindOffPod     = 0x12 // balance, with source NAT unless a pod asks
	kindOutside    = 0x13 // balance over the backends for outside
	kindSplit      = 0x30 // see where the client is first
	kindGuard      = 0x31 // see whether the client is let in first
)

// maxBackends is how many backends a way can count.
const maxBackends = 0xffff

func (s *space) way(kind uint16, n int) way {
	if kind < kindPlain {
		return way(kind) << 16
	}
	return way(s.base+kind)<<16 | way(n)
}

// kind returns what to do with a connection, whether clients are remembered or not.
func (w way) kind() uint16 {
	if w.sticky() {
		return w.stickyKind()
	}
	return uint16(w>>16) & 0xff
}

func (w way) count() int { return int(w & 0xffff) }

func (w way) space(l *layout) *space {
	if w>>24&3 == 2 {
		return &l.spaces[byNodePort]
	}
	return &l.spaces[byAddress]
}

// chain names the chain a way leads to.
func (w way) chain(l *layout) string {
	name := w.space(l).name
	if w.sticky() {
		return name + w.stickyChain()
	}
	switch w.kind() {
	case kindReject:
		return rejected
	case kindDrop:
		return dropped
	case kindPlain:
		return fmt.Sprintf("%sbalance-%d", name, w.count())
	case kindMasquerade:
		return fmt.Sprintf("%smasquerade-%d", name, w.count())
	case kindOffPod:
		return fmt.Sprintf("%soff-pod-%d", name, w.count())
	case kindOutside:
		return fmt.Sprintf("%soutside-%d", name, w.count())
	case kindSplit:
		return name + "split"
	}
	return name + "guard"
}
