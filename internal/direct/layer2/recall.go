package layer2

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// recall adds to ports the former owners that the tables of an earlier run name, so that connections survive a restart.
func (f *Follower) recall(ctx context.Context, ports map[route.PortID]*port, names map[netip.Addr]string) error {
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
			m := memory{state: state, nodes: nodesIn(state, names)}
			for id, p := range ports {
				if fronts := p.external(); familyOf(p.Family) == s.ip && len(fronts) > 0 {
					known := *p
					key := keyOf(fronts[0], p.Protocol)
					known.slots = p.slots.Recall(func(slot int) []string { return m.former(s, key, slot) })
					ports[id] = &known
				}
			}
		}
	}
	return nil
}

// memory is what a table says of former owners.
type memory struct {
	state *nft.State
	nodes map[string]string // by the data in maps of slots
}

// nodesIn returns the names of the nodes in a table.
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
func (m memory) former(s side, key string, slot int) (names []string) {
	for _, at := range s.stages() {
		e, _ := m.state.Sets[s.slots(packets, at).Name].Elements.Get(slotKey(key, slot))
		if name := m.nodes[e.Data]; name != "" {
			names = append(names, name)
		}
	}
	return names
}
