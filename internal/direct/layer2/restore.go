package layer2

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// restore adds the former owners in the tables of an earlier run to the ports, so that connections survive a restart.
func (f *Follower) restore(ctx context.Context, ports map[route.PortID]*port, names map[netip.Addr]string) error {
	for g := range generation(generations) {
		for _, s := range sides() {
			if s.entering {
				continue
			}
			state, err := f.opt.Kernel.Read(ctx, s.table(g), nil)
			if err != nil {
				return err
			}
			if state == nil {
				continue
			}
			saved := savedOwners{state: state, nodes: nodesIn(state, names)}
			for id, p := range ports {
				if fronts := p.external(); familyOf(p.Family) == s.ip && len(fronts) > 0 {
					known := *p
					key := keyOf(fronts[0], p.Protocol)
					known.slots = p.slots.WithFormer(func(slot int) []string { return saved.former(s, key, slot) })
					ports[id] = &known
				}
			}
		}
	}
	return nil
}

// savedOwners reads former owners from a table.
type savedOwners struct {
	state *nft.State
	nodes map[string]string // names of nodes by the data in maps of slots
}

// nodesIn returns the names of the nodes in a table, by the data in maps of slots.
func nodesIn(state *nft.State, names map[netip.Addr]string) map[string]string {
	nodes := map[string]string{}
	for set, content := range state.Sets {
		if !strings.HasPrefix(set, "nodes-") {
			continue
		}
		for _, e := range content.Elements.All() {
			if a, ok := netip.AddrFromSlice([]byte(e.Data)); ok {
				nodes[e.Key] = names[a]
			}
		}
	}
	return nodes
}

// former returns the nodes to which packets of a slot were passed on.
func (m savedOwners) former(s side, key string, slot int) (names []string) {
	for _, at := range s.stages() {
		e, _ := m.state.Sets[s.slots(withPort, at).Name].Elements.Get(slotKey(key, slot))
		if name := m.nodes[e.Data]; name != "" {
			names = append(names, name)
		}
	}
	return names
}
