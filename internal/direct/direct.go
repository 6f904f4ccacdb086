// Package direct decides which node serves a connection of a client outside that reaches a Service by an external
// address, so that all nodes agree: it follows from the owners of the port (route.Port.Owners) and the hash of the
// client alone. It does no I/O; package layer2 writes the decisions to the kernel.
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

// Former is how many nodes besides the owner may have connections of a slot that has moved. More find connections
// after more changes, but let a flood of forged packets make more load. Passes is how often a packet is passed on to
// find them: once more, since it may come to the owner again.
const (
	Former = 3
	Passes = Former + 1
)

// Port is how the slots of a port are owned. It does not change.
type Port struct {
	chains [][]string // for each slot the owner, and the former ones, the last one first; empty: it has no owner
}

// Next returns the state after the owners of a port have changed.
func (p Port) Next(owners []route.Owner) Port {
	next := Port{make([][]string, Slots)}
	alone := map[string][]string{"": nil} // most slots have no former owner, and share a list
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
			next.chains[slot] = append([]string{owner}, former[:min(len(former), Former)]...)
		}
	}
	return next
}

// Recall adds former owners that are known from an earlier run of the program, the last one first.
func (p Port) Recall(former func(slot int) []string) Port {
	next := Port{slices.Clone(p.chains)}
	for slot, chain := range next.chains {
		for _, name := range former(slot) {
			if len(chain) > 0 && len(chain) <= Former && !slices.Contains(chain, name) {
				chain = append(slices.Clip(chain), name)
			}
		}
		next.chains[slot] = chain
	}
	return next
}

// View is what one node knows of the others in one IP family.
type View struct {
	Self      string
	Reachable func(node string) bool // it can pass packets on to the other node
}

// Choice says for each slot to which node a packet goes; "": it stays on this node. Unknown and Lost are packets within
// a TCP connection that this node does not know.
type Choice struct {
	Entering []string // packets that enter the cluster here
	Unknown  []string // to the owner; on the owner, to the one before
	Lost     []string // those that another node has passed on: to the next node that may know them; "": as Unknown
}

// Choose returns where packets go. A slot whose owner this node cannot reach goes to an owner that it can reach, so
// that the client keeps its address and the load is even. Without one it stays here.
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
		c.Lost[slot] = after(v.Self, candidates(chain, owners), v.Reachable)
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

// candidates returns the nodes that may have connections of a slot that has moved, sorted: its owner and the former
// ones, and owners of other slots, because nodes that lag, or see two changes as one, have seen other owners.
func candidates(chain []string, owners []route.Owner) []string {
	list := slices.Clone(chain)
	for _, o := range owners {
		if len(list) < 1+Former && !slices.Contains(chain, o.Node) {
			list = append(list, o.Node)
		}
	}
	slices.Sort(list)
	return list
}

// after returns the node that follows in a circle of sorted names: a packet visits all, wherever it begins, and even if
// nodes disagree about some.
func after(self string, circle []string, reachable func(string) bool) string {
	i, _ := slices.BinarySearch(circle, self)
	for n := range circle {
		if name := circle[(i+n)%len(circle)]; name != self && reachable(name) {
			return name
		}
	}
	return ""
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
