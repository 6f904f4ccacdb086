package nftables

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// TableName is the name of both tables, "ip sluice" and "ip6 sluice".
const TableName = "sluice"

func tableFor(ip route.Family) nft.Table {
	if ip == route.IPv4 {
		return nft.Table{Family: nft.IP4, Name: TableName}
	}
	return nft.Table{Family: nft.IP6, Name: TableName}
}

// object is the kind of an entry. From firstElement on it is that of the elements of one set.
type object uint8

const (
	tableObject object = iota
	setObject
	chainObject // a chain that is there whatever Services there are
	actionChain // a chain for an action of frontends

	firstElement
)

// The elements of the sets that are there once.
const (
	wayElement         = firstElement + iota // action -> chain
	splitWay                                 // action that is no split -> chain
	hairpinElement                           // backend . backend: connections of a backend to itself
	clusterIPElement                         // known ClusterIPs: their other ports are refused
	serviceCIDRElement                       // their other addresses are dropped
	nodeIPElement                            // where NodePorts are served, unless everywhere
	podRanges                                // clients that count as pods
	allowedRanges                            // frontend . source: allowed clients
	clientElement                            // id of a port . client -> number of the backend it keeps; rules add them
	oddCount                                 // as backendCount by address, for odd addresses
	spaceElement
)

// The elements of the sets that each space has.
const (
	backendElement        object = iota // key . index -> backend
	outsideBackendElement               // the same for actions in outside
	affinityElement                     // key -> id of a port that remembers its clients
	insideElement                       // key -> action for clients on this node, if others are treated differently
	outsideElement                      // key -> action for these others
	frontendElement                     // key -> action
	backendCount                        // key . index, with the connections to the row; rules add them
	outsideBackendCount                 // the same of outsideBackendElement
	perSpace
)

// wayOf returns where the actions in other elements are looked up. The kernel refuses a map through which a chain
// could jump to itself, so there are two.
func wayOf(actions object) object {
	if actions == frontendElement.in(byAddress) || actions == frontendElement.in(byNodePort) {
		return wayElement
	}
	return splitWay
}

// space is one of two ways to identify a frontend, each with its own maps: by address, protocol and port, or, for
// NodePorts, by protocol and port.
type space uint8

const (
	byAddress space = iota
	byNodePort
	spaces // how many there are
)

func spaceOf(f *route.Frontend) space {
	if f.Kind == route.NodePort {
		return byNodePort
	}
	return byAddress
}

// name is the prefix of the names of the maps and chains of a space.
func (s space) name() string { return [...]string{"", "nodeport-"}[s] }

// key returns the fields of a packet that identify a frontend of this space.
func (s space) key(f nft.Family) []nft.Field {
	if s == byAddress {
		return []nft.Field{nft.Destination(f), nft.L4Proto(), nft.DestinationPort()}
	}
	return []nft.Field{nft.L4Proto(), nft.DestinationPort()}
}

// space is that of an object that each space has.
func (o object) space() space { return space((o - spaceElement) / perSpace) }

func (o object) in(s space) object { return spaceElement + o + object(s)*perSpace }

// ranged: all ranges of a frontend, or of pods, are one entry.
func (o object) ranged() bool { return o == podRanges || o == allowedRanges }

// layout has the sets and maps of a table by their elements; it is the same for both families.
type layout [spaceElement + object(spaces)*perSpace]nft.Set

func newLayout() *layout {
	addr, backend := []nft.Type{nft.Addr}, []nft.Type{nft.Addr, nft.Port}
	action, verdict := []nft.Type{nft.ClassID}, []nft.Type{nft.Verdict}
	keys := [spaces][]nft.Type{byAddress: {nft.Addr, nft.Proto, nft.Port}, byNodePort: {nft.Proto, nft.Port}}
	with := func(s space, t nft.Type) []nft.Type { return append(slices.Clone(keys[s]), t) }
	l := &layout{
		wayElement:         {Name: "ways", Key: action, Data: verdict},
		splitWay:           {Name: "ways-after-split", Key: action, Data: verdict},
		clusterIPElement:   {Name: "cluster-ips", Key: addr},
		serviceCIDRElement: {Name: "service-cidrs", Key: addr, Interval: true},
		nodeIPElement:      {Name: "node-ips", Key: addr},
		podRanges:          {Name: "pod-cidrs", Key: addr, Interval: true},
		hairpinElement:     {Name: "hairpin", Key: []nft.Type{nft.Addr, nft.Addr}},
		allowedRanges:      {Name: "allowed", Key: with(byAddress, nft.Addr), Interval: true},
		clientElement: {
			Name: "clients", Key: []nft.Type{nft.ClassID, nft.Addr}, Data: []nft.Type{nft.Index},
			Dynamic: true, Size: maxClients,
		},
	}
	counts := func(s space, name string) nft.Set {
		return nft.Set{Name: name, Key: with(s, nft.Index), Dynamic: true, Size: maxCounts, Timeout: countedFor}
	}
	l[oddCount] = counts(byAddress, "odd-counts")
	for s := range spaces {
		for of, set := range []nft.Set{
			backendElement:        {Name: "backends", Key: with(s, nft.Index), Data: backend},
			outsideBackendElement: {Name: "outside-backends", Key: with(s, nft.Index), Data: backend},
			affinityElement:       {Name: "affinity", Key: keys[s], Data: action},
			insideElement:         {Name: "inside", Key: keys[s], Data: action},
			outsideElement:        {Name: "outside", Key: keys[s], Data: action},
			frontendElement:       {Name: "fronts", Key: keys[s], Data: action},
			backendCount:          counts(s, "counts"),
			outsideBackendCount:   counts(s, "outside-counts"),
		} {
			set.Name = s.name() + set.Name
			l[object(of).in(s)] = set
		}
	}
	return l
}

func (l *layout) sets() []nft.Set { return l[firstElement:] }

// action is the data in the maps of frontends: what to do with a connection, and the number of backends to
// choose from, which nft prints as "kind:number" in hexadecimal; sticky.go has the bits of an action that
// remembers clients. Two small maps lead from actions to chains: of a verdict map the kernel walks all
// elements after each change (nf_tables_api.c, nft_table_validate).
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
)

// guardBit is set in the actions of frontends with source ranges, whose chains first test whether
// the client is allowed. NodePorts have no such ranges.
const guardBit action = 1 << 22

// hashBit is set in the actions of frontends that choose a slot by a hash of the client's address.
const hashBit action = 1 << 18

func (s space) action(kind uint16, n int) action {
	if kind < kindPlain {
		return action(kind) << 16
	}
	return s.base() | action(kind)<<16 | action(n)
}

func (s space) base() action { return action(s+1) << 24 }

// kind returns the kind of action, whether it remembers clients or not.
func (a action) kind() uint16 {
	if a.sticky() {
		return a.stickyKind()
	}
	return uint16((a&^(guardBit|hashBit))>>16) & 0xff
}

func (a action) hashes() bool { return !a.sticky() && a&hashBit != 0 }

func (a action) guarded() bool { return a&guardBit != 0 }

func (a action) count() int { return int(a & 0xffff) }

func (a action) space() space {
	if a>>24&3 == 2 {
		return byNodePort
	}
	return byAddress
}

func (a action) data() string { return string(nft.Key{}.ClassID(uint32(a))) }

func (a action) chain() string {
	if a.guarded() {
		return (a &^ guardBit).chain() + "-guarded"
	}
	space := a.space().name()
	switch {
	case a.sticky() && a.pool() == route.Local:
		return fmt.Sprintf("%ssticky-%s-local-%d-%ds", space, a.balancing(), a.drawn(), a.timeout()/time.Second)
	case a.sticky():
		return fmt.Sprintf("%ssticky-%s-%d-%ds", space, a.balancing(), a.drawn(), a.timeout()/time.Second)
	case a.kind() == kindReject:
		return rejected
	case a.kind() == kindDrop:
		return dropped
	case a.kind() == kindSplit:
		return space + "split"
	case a.hashes():
		return fmt.Sprintf("%s%s-by-hash-%d", space, a.balancing(), a.count())
	}
	return fmt.Sprintf("%s%s-%d", space, a.balancing(), a.count())
}

func (a action) balancing() string {
	return map[uint16]string{
		kindPlain: "balance", kindMasquerade: "masquerade", kindOffPod: "off-pod", kindOutside: "outside",
	}[a.kind()]
}

// isActionChain reports whether a chain of an action may have this name.
func isActionChain(name string) bool {
	name = strings.TrimPrefix(name, byNodePort.name())
	return slices.ContainsFunc([]string{
		"balance-", "masquerade-", "off-pod-", "outside-", "sticky-", "draw-", "inside", "split", "rejected-", "dropped-",
	}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
