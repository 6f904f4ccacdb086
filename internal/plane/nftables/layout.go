package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// TableName is the name of both tables, "ip sluice" and "ip6 sluice".
const TableName = "sluice"

// family has everything that differs between IPv4 and IPv6.
type family struct {
	ip    route.Family
	table nft.Table
}

func rows(enabled []route.Family) []family {
	var all []family
	for _, ip := range enabled {
		all = append(all, family{ip, tableFor(ip)})
	}
	return all
}

func tableFor(ip route.Family) nft.Table {
	if ip == route.IPv4 {
		return nft.Table{Family: nft.IP4, Name: TableName}
	}
	return nft.Table{Family: nft.IP6, Name: TableName}
}

func everyFamily() []family { return rows([]route.Family{route.IPv4, route.IPv6}) }

// space is one of the two ways to identify a frontend, each with its own maps: by address,
// protocol and port, or, for NodePorts, by protocol and port at any address of the node.
type space struct {
	index int    // in layout.spaces
	name  string // prefix of the names of its maps and chains
	base  uint16 // added to the kind in the major number of an action

	frontends       nft.Set // key -> action
	inside          nft.Set // key -> action for clients on this node, of frontends that treat the two differently
	outside         nft.Set // key -> action for all others, of frontends that treat the two differently
	guarded         nft.Set // key -> action for allowed clients
	allowed         nft.Set // key . source: allowed clients
	backends        nft.Set // key . index -> backend
	outsideBackends nft.Set // the same for actions in outside
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
	actions      [3]nft.Set // action -> chain, by level
	clusterIPs   nft.Set    // known ClusterIPs: their other ports are refused
	serviceCIDRs nft.Set    // their other addresses are dropped
	nodeIPs      nft.Set    // where NodePorts are served, unless everywhere
	podCIDRs     nft.Set    // clients that count as pods
	hairpin      nft.Set    // backend . backend: connections of a backend to itself
	clients      nft.Set    // id of a port . client -> number of the backend it keeps

	all []nft.Set // in the order of sets
}

// The levels at which an action is looked up. The kernel refuses maps through which a chain
// could jump to itself, so each level has its own map.
const (
	atOnce     = iota // any action
	afterGuard        // not a guard
	afterSplit        // neither guard nor split
)

func newLayout() layout {
	addr := []nft.Type{nft.Addr}
	actions := func(name string) nft.Set {
		return nft.Set{Name: name, Key: []nft.Type{nft.ClassID}, Data: []nft.Type{nft.Verdict}}
	}
	l := layout{
		spaces: [2]space{
			newSpace(byAddress, "", nft.Addr, nft.Proto, nft.Port),
			newSpace(byNodePort, "nodeport-", nft.Proto, nft.Port),
		},
		clusterIPs:   nft.Set{Name: "cluster-ips", Key: addr},
		serviceCIDRs: nft.Set{Name: "service-cidrs", Key: addr, Interval: true},
		nodeIPs:      nft.Set{Name: "node-ips", Key: addr},
		podCIDRs:     nft.Set{Name: "pod-cidrs", Key: addr, Interval: true},
		hairpin:      nft.Set{Name: "hairpin", Key: []nft.Type{nft.Addr, nft.Addr}},
		clients:      clientMap(),
		actions:      [3]nft.Set{actions("ways"), actions("ways-after-guard"), actions("ways-after-split")},
	}
	for _, set := range l.sets() {
		l.all = append(l.all, *set)
	}
	return l
}

// set returns the set that contains an element.
func (l *layout) set(of object) *nft.Set { return &l.all[of-firstElement] }

func newSpace(index int, name string, key ...nft.Type) space {
	action, backend := []nft.Type{nft.ClassID}, []nft.Type{nft.Addr, nft.Port}
	with := func(t nft.Type) []nft.Type { return append(append([]nft.Type{}, key...), t) }
	return space{
		index: index, name: name, base: uint16(index+1) << 8,
		frontends:       nft.Set{Name: name + "fronts", Key: key, Data: action},
		inside:          nft.Set{Name: name + "inside", Key: key, Data: action},
		outside:         nft.Set{Name: name + "outside", Key: key, Data: action},
		guarded:         nft.Set{Name: name + "guarded", Key: key, Data: action},
		allowed:         nft.Set{Name: name + "allowed", Key: with(nft.Addr), Interval: true},
		backends:        nft.Set{Name: name + "backends", Key: with(nft.Index), Data: backend},
		outsideBackends: nft.Set{Name: name + "outside-backends", Key: with(nft.Index), Data: backend},
		affinity:        nft.Set{Name: name + "affinity", Key: key, Data: []nft.Type{nft.ClassID}},
	}
}

// sets lists all sets, in the order of the numbers of their elements.
func (l *layout) sets() []*nft.Set {
	all := []*nft.Set{
		&l.actions[atOnce], &l.actions[afterGuard], &l.actions[afterSplit],
		&l.clusterIPs, &l.serviceCIDRs, &l.nodeIPs, &l.podCIDRs, &l.hairpin, &l.clients,
	}
	for i := range l.spaces {
		all = append(all, l.spaces[i].sets()...)
	}
	return all
}

func (s *space) sets() []*nft.Set {
	return []*nft.Set{
		&s.backends, &s.outsideBackends, &s.affinity, &s.allowed, &s.guarded, &s.inside, &s.outside, &s.frontends,
	}
}

// key returns the fields of a packet that identify a frontend of this space.
func (s *space) key(f nft.Family) []nft.Field {
	if s.index == byAddress {
		return []nft.Field{nft.Destination(f), nft.L4Proto(), nft.DestinationPort()}
	}
	return []nft.Field{nft.L4Proto(), nft.DestinationPort()}
}

// action is the data in the maps of frontends: what to do with a connection, and the number
// of backends to choose from; sticky.go has the bits of an action that remembers clients.
// nft prints it as "major:minor", the kind and the number, both in hexadecimal. The maps of
// actions, whose size does not depend on the number of Services, map an action to a chain.
// If the maps of frontends were verdict maps, the kernel would walk all their elements
// after each change of one (nf_tables_api.c, nft_table_validate).
type action uint32

// The kinds of actions. Those below kindPlain are the same in both spaces.
const (
	kindReject     = 0x1
	kindDrop       = 0x2
	kindPlain      = 0x10 // balance
	kindMasquerade = 0x11 // balance, with source NAT
	kindOffPod     = 0x12 // balance, with source NAT unless the client is a pod
	kindOutside    = 0x13 // balance over the backends for outside
	kindSplit      = 0x30 // first test where the client is
	kindGuard      = 0x31 // first test whether the client is allowed
)

// maxBackends is the largest number of backends in an action.
const maxBackends = 0xffff

func (s *space) action(kind uint16, n int) action {
	if kind < kindPlain {
		return action(kind) << 16
	}
	return action(s.base+kind)<<16 | action(n)
}

// kind returns the kind of action, whether it remembers clients or not.
func (a action) kind() uint16 {
	if a.sticky() {
		return a.stickyKind()
	}
	return uint16(a>>16) & 0xff
}

func (a action) count() int { return int(a & 0xffff) }

func (a action) space(l *layout) *space {
	if a>>24&3 == 2 {
		return &l.spaces[byNodePort]
	}
	return &l.spaces[byAddress]
}

// chain returns the name of the chain of an action.
func (a action) chain(l *layout) string {
	name := a.space(l).name
	if a.sticky() {
		return name + a.stickyChain()
	}
	switch a.kind() {
	case kindReject:
		return rejected
	case kindDrop:
		return dropped
	case kindPlain:
		return fmt.Sprintf("%sbalance-%d", name, a.count())
	case kindMasquerade:
		return fmt.Sprintf("%smasquerade-%d", name, a.count())
	case kindOffPod:
		return fmt.Sprintf("%soff-pod-%d", name, a.count())
	case kindOutside:
		return fmt.Sprintf("%soutside-%d", name, a.count())
	case kindSplit:
		return name + "split"
	}
	return name + "guard"
}
