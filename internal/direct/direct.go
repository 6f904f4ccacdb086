// Package direct decides which node serves a connection of an external client to an external address of a Service. The
// decision depends only on the owners of the port (route.Port.Owners) and the hash of the client, so all nodes agree.
// The package does no I/O; package layer2 writes the decisions to the kernel.
package direct

import (
	"crypto/sha256"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Slots is the number of slots of each port. It is a constant, because with another number most connections would have
// another owner. With this number the shares of a hundred nodes differ by a tenth at most.
const Slots = 1021

const (
	// MaxFormer is the maximum number of former owners of a slot. With more former owners, connections are found after
	// more changes, but a flood of forged packets causes more load.
	MaxFormer = 3

	// MaxPasses is how often nodes pass a packet on to find its connection. It is one more than MaxFormer, because the
	// packet may visit the owner twice.
	MaxPasses = MaxFormer + 1
)

// Port has the owners of the slots of a port. It does not change.
type Port struct {
	chains [][]string // for each slot: its owner, then its former owners, the latest first; empty if it has no owner
}

// Next returns the Port after its owners have changed.
func (p Port) Next(owners []route.Owner) Port {
	next := Port{make([][]string, Slots)}
	alone := map[string][]string{"": nil} // chains without former owners, which most slots share
	for slot, owner := range assign(owners) {
		if _, known := alone[owner]; !known {
			alone[owner] = []string{owner}
		}
		var before []string
		if p.chains != nil {
			before = p.chains[slot]
		}
		switch {
		case len(before) == 0:
			next.chains[slot] = alone[owner]
		case owner == "" || before[0] == owner:
			next.chains[slot] = before
		default:
			former := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return name == owner })
			next.chains[slot] = append([]string{owner}, former[:min(len(former), MaxFormer)]...)
		}
	}
	return next
}

// WithFormer returns the Port with the former owners that an earlier run recorded, the latest first.
func (p Port) WithFormer(former func(slot int) []string) Port {
	next := Port{slices.Clone(p.chains)}
	for slot, chain := range next.chains {
		for _, name := range former(slot) {
			if len(chain) > 0 && len(chain) <= MaxFormer && !slices.Contains(chain, name) {
				chain = append(slices.Clip(chain), name)
			}
		}
		next.chains[slot] = chain
	}
	return next
}

// View is the network as one node sees it, in one IP family.
type View struct {
	Self      string
	Reachable func(node string) bool // whether Self can pass packets on to the node
}

// Choice has the next node of a packet for each slot; "" if the packet stays on this node. Unknown and Lost are for TCP
// segments of connections that this node does not have. A node that replaces a Choice in parts must write Lost first
// and Entering last.
type Choice struct {
	Entering []string // for packets that enter the cluster at this node: the owner
	Unknown  []string // for segments of unknown connections: the owner, or on the owner, the latest former owner
	Lost     []string // for segments that another node passed on: the next candidate; "": as Unknown
}

// Choose returns the next node of packets. If this node cannot reach the owner of a slot, it chooses another owner that
// it can reach, so that the client keeps its address and the load is even. If it reaches no owner, the slot stays here.
func (p Port) Choose(owners []route.Owner, v View) Choice {
	can := func(name string) bool { return name == v.Self || v.Reachable(name) }
	reachable := slices.DeleteFunc(slices.Clone(owners), func(o route.Owner) bool { return !can(o.Node) })
	var others []string
	if len(reachable) < len(owners) {
		others = assign(reachable)
	}
	c := Choice{make([]string, Slots), make([]string, Slots), make([]string, Slots)}
	for slot, chain := range p.chains {
		if len(chain) == 0 {
			continue
		}
		owner := chain[0]
		if !can(owner) {
			owner = others[slot]
		}
		if owner != v.Self && owner != "" {
			c.Entering[slot], c.Unknown[slot] = owner, owner
		}
		if len(chain) == 1 {
			continue
		}
		c.Lost[slot] = nextAfter(v.Self, candidates(chain, owners), v.Reachable)
		switch {
		case c.Unknown[slot] != "":
		case chain[0] == v.Self && v.Reachable(chain[1]):
			c.Unknown[slot] = chain[1]
		default:
			c.Unknown[slot] = c.Lost[slot]
		}
	}
	return c
}

// candidates returns the nodes that may have connections of a slot that has moved, sorted: its owner, its former
// owners, and owners of other slots up to the limit. The latter matter because nodes that lag, or see two changes as
// one, have seen other owners.
func candidates(chain []string, owners []route.Owner) []string {
	list := slices.Clone(chain)
	for _, o := range owners {
		if len(list) < 1+MaxFormer && !slices.Contains(chain, o.Node) {
			list = append(list, o.Node)
		}
	}
	slices.Sort(list)
	return list
}

// nextAfter returns the reachable node that follows self in a ring of sorted names. A packet visits all nodes of the
// ring, wherever it begins, even if nodes disagree about some names.
func nextAfter(self string, circle []string, reachable func(string) bool) string {
	i, _ := slices.BinarySearch(circle, self)
	for n := range circle {
		if name := circle[(i+n)%len(circle)]; name != self && reachable(name) {
			return name
		}
	}
	return ""
}

// assign returns the owner of each slot, by Maglev: adding or removing a node moves few slots of other nodes.
func assign(owners []route.Owner) []string {
	table := make([]string, Slots)
	names, ids, weights := identify(owners)
	if len(ids) == 0 {
		return table
	}
	for slot, id := range slots.MaglevOf(Slots, ids, func(id netip.AddrPort) uint16 { return weights[id] }) {
		table[slot] = names[id]
	}
	return table
}

// identify returns an ID for each node, in their order. An ID depends only on the name. It also returns the names and
// the weights by ID, scaled to 16 bits.
func identify(owners []route.Owner) (map[netip.AddrPort]string, []netip.AddrPort, map[netip.AddrPort]uint16) {
	most := uint32(0)
	for _, o := range owners {
		most = max(most, o.Weight)
	}
	names, weights := map[netip.AddrPort]string{}, map[netip.AddrPort]uint16{}
	ids := make([]netip.AddrPort, len(owners))
	for i, o := range owners {
		sum := sha256.Sum256([]byte(o.Node))
		ids[i] = netip.AddrPortFrom(netip.AddrFrom16([16]byte(sum[:16])), 0)
		names[ids[i]] = o.Node
		w := uint64(o.Weight)
		if most > math.MaxUint16 {
			w = max(1, w*math.MaxUint16/uint64(most))
		}
		weights[ids[i]] = uint16(w)
	}
	return names, ids, weights
}

// Sum adds the owners of a port to a checksum. Nodes with the same checksum have the same owners.
func Sum(to *slots.Checksum, port route.PortID, owners []route.Owner) {
	_, ids, weights := identify(owners)
	to.Add("direct "+port.String(), ids, func(id netip.AddrPort) uint16 { return weights[id] })
}
