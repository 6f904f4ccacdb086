package direct

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// owners returns the owners with these weights, sorted by name.
func owners(weights map[string]uint32) []route.Owner {
	var list []route.Owner
	for name, w := range weights {
		list = append(list, route.Owner{Node: name, Weight: w})
	}
	slices.SortFunc(list, func(a, b route.Owner) int { return compare(a.Node, b.Node) })
	return list
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func all(string) bool { return true }

// Nodes own slots by their weights, including large weights, and a new node moves few slots of other nodes.
func TestSlotsFollowWeights(t *testing.T) {
	before := Port{}.Next(owners(map[string]uint32{"a": 1, "b": 2}))
	after := before.Next(owners(map[string]uint32{"a": 100_000, "b": 200_000, "c": 300_000}))
	count, moved := map[string]int{}, 0
	for slot, chain := range after.chains {
		count[chain[0]]++
		if was := before.chains[slot][0]; was != chain[0] && chain[0] != "c" {
			moved++
		}
	}
	for name, want := range map[string]int{"a": Slots / 6, "b": Slots / 3, "c": Slots / 2} {
		if got := count[name]; got < want-1 || got > want+1 {
			t.Errorf("%s has %d slots, want %d", name, got, want)
		}
	}
	if moved > Slots/20 {
		t.Errorf("%d slots moved between nodes that stay", moved)
	}
}

// A node that cannot reach the owner of a slot chooses another owner, and serves the slot itself if it reaches none.
func TestUnreachableOwners(t *testing.T) {
	list := owners(map[string]uint32{"a": 1, "b": 1, "c": 1})
	p := Port{}.Next(list)
	c := p.Choose(list, View{Self: "x", Reachable: func(name string) bool { return name == "a" || name == "b" }})
	for slot, chain := range p.chains {
		if got := c.Entering[slot]; got == chain[0] || chain[0] == "c" && (got == "a" || got == "b") {
			continue
		}
		t.Fatalf("slot %d of %s goes to %q", slot, chain[0], c.Entering[slot])
	}
	none := p.Choose(list, View{Self: "x", Reachable: func(string) bool { return false }})
	if want := make([]string, Slots); !slices.Equal(none.Entering, want) || !slices.Equal(none.Unknown, want) {
		t.Error("a packet goes to a node that cannot be reached")
	}
}

// Former owners of an earlier run come after the owner, each once.
func TestWithFormer(t *testing.T) {
	p := Port{}.Next(owners(map[string]uint32{"a": 1})).WithFormer(func(slot int) []string {
		return [][]string{{"b", "a", "c"}, nil, {"a"}, {"b", "c", "d", "e"}}[slot%4]
	})
	for slot, want := range [][]string{{"a", "b", "c"}, {"a"}, {"a"}, {"a", "b", "c", "d"}} {
		if got := p.chains[slot]; !slices.Equal(got, want) {
			t.Errorf("slot %d: got %v, want %v", slot, got, want)
		}
	}
}

// The checksum depends on owners and their weights, but not on the order in which ports are added.
func TestSum(t *testing.T) {
	sum := func(ports ...string) (c slots.Checksum) {
		for _, name := range ports {
			Sum(&c, route.PortID{Name: name}, owners(map[string]uint32{"a": 1, name: 2}))
		}
		return c
	}
	if sum("p", "q") != sum("q", "p") || sum("p") == sum("q") {
		t.Errorf("got %s, %s, %s and %s", sum("p", "q"), sum("q", "p"), sum("p"), sum("q"))
	}
}

// fleet is a group of nodes that follow changes at different speeds.
type fleet struct {
	names  []string
	ports  map[string]Port
	owners map[string][]route.Owner // the owners that each node has seen last
}

// walk follows a packet of a slot from the node where it enters to the node that has its connection, or to the last
// node.
func (f fleet) walk(slot int, enters, has string) (at string, passes int) {
	choose := func(at string) Choice {
		return f.ports[at].Choose(f.owners[at], View{Self: at, Reachable: all})
	}
	at = enters
	if next := choose(at).Entering[slot]; next != "" {
		at = next
	}
	for at != has && passes < MaxPasses {
		c := choose(at)
		next := c.Unknown[slot]
		if passes > 0 && c.Lost[slot] != "" {
			next = c.Lost[slot]
		}
		if next == "" {
			break
		}
		at = next
		passes++
	}
	return at, passes
}

// In a cluster of three nodes, a packet finds the node with its connection after any changes, wherever it enters, and
// while nodes lag and see several changes as one.
func TestConnectionsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for run := range 10 {
		f := fleet{[]string{"a", "b", "c"}, map[string]Port{}, map[string][]route.Owner{}}
		list := owners(map[string]uint32{"a": 1, "b": 1, "c": 1})
		for _, name := range f.names {
			f.ports[name], f.owners[name] = f.ports[name].Next(list), list
		}
		began := f.ports["a"].chains
		for change := range 15 {
			weights := map[string]uint32{}
			for len(weights) == 0 {
				for _, name := range f.names {
					if w := random.Uint32N(3); w > 0 {
						weights[name] = w
					}
				}
			}
			for _, name := range f.names {
				if random.IntN(2) == 0 {
					f.owners[name] = owners(weights)
					f.ports[name] = f.ports[name].Next(f.owners[name])
				}
			}
			for range 5 {
				slot, enters := random.IntN(Slots), f.names[random.IntN(3)]
				if at, passes := f.walk(slot, enters, began[slot][0]); at != began[slot][0] {
					t.Fatalf("run %d, change %d: a packet of slot %d that enters at %s ends at %s after %d, want %s:\n%s",
						run, change, slot, enters, at, passes, began[slot][0], f.describe(slot))
				}
			}
		}
	}
}

func (f fleet) describe(slot int) (text string) {
	for _, name := range f.names {
		text += fmt.Sprintf("%s: %v of %v\n", name, f.ports[name].chains[slot], f.owners[name])
	}
	return text
}
