// Package direct decides which node serves a connection of a client outside that reaches a Service by an external
// address, so that all nodes agree: it follows from the owners of the port (route.Port.Owners) and the hash of the client
// alone. It does no I/O; package layer2 writes the decisions to the kernel.
package direct

import (
	"crypto/sha256"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Slots is the number of slots of each port. It is a constant, since another number would give most connections another
// owner. With it the shares of a hundred nodes differ by a tenth at most.
const Slots = 1021

// Port is how the slots of a port are owned. Its lists have a name of a node for each slot, or "", and do not change.
type Port struct {
	Owner  []string
	Before []string // the owner before that, which may have connections of the slot
}

// Next returns the state after the owners of a port have changed.
func (p Port) Next(owners []route.Owner) Port {
	next := Port{assign(owners), make([]string, Slots)}
	for slot, now := range next.Owner {
		switch {
		case p.Owner == nil:
		case p.Owner[slot] != now && p.Owner[slot] != "":
			next.Before[slot] = p.Owner[slot]
		default:
			next.Before[slot] = p.Before[slot]
		}
	}
	return next
}

// View is what one node knows of the others in one IP family.
type View struct {
	Self      string
	Reachable func(node string) bool // it can pass packets on to the other node
}

// Choice says for each slot to which node a packet goes; "": it stays on this node.
type Choice struct {
	Entering []string // packets that enter the cluster here
	Unknown  []string // packets within a TCP connection that this node does not know
}

// Choose returns where packets go. A slot whose owner this node cannot reach goes to an owner that it can reach, so that
// the client keeps its address and the load is even. Without one it stays here.
func (p Port) Choose(owners []route.Owner, v View) Choice {
	reachable := slices.DeleteFunc(slices.Clone(owners), func(o route.Owner) bool {
		return o.Node != v.Self && !v.Reachable(o.Node)
	})
	here := p.Owner
	if len(reachable) < len(owners) {
		here = slices.Clone(p.Owner)
		for slot, other := range assign(reachable) {
			if here[slot] != v.Self && !v.Reachable(here[slot]) {
				here[slot] = other
			}
		}
	}
	c := Choice{make([]string, Slots), make([]string, Slots)}
	for slot, owner := range here {
		if owner != v.Self {
			c.Entering[slot], c.Unknown[slot] = owner, owner
			continue
		}
		if before := p.Before[slot]; before != v.Self && before != "" && v.Reachable(before) {
			c.Unknown[slot] = before
		}
	}
	return c
}

// assign returns the owner of each slot, by Maglev: a node that comes or goes changes few slots of others.
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

// identify returns a number for each node, which depends on its name only, in their order.
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

// Sum adds the owners of a port to a checksum. Nodes with the same checksum agree.
func Sum(to *slots.Checksum, port route.PortID, owners []route.Owner) {
	_, ids, weights := identify(owners)
	to.Add("direct "+port.String(), ids, func(id netip.AddrPort) uint16 { return weights[id] })
}
