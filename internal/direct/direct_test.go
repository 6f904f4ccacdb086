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
	random *rand.Rand
	nodes  map[string]*member
}

// member is a node with its choices before and after the last change that it has seen.
type member struct {
	port          Port
	owners        []route.Owner // after that change
	before, after Choice
}

func (m *member) follow(self string, list []route.Owner) {
	m.port, m.owners, m.before = m.port.Next(list), list, m.after
	m.after = m.port.Choose(list, View{Self: self, Reachable: all})
}

// written returns what a node has written of its last change: nothing, a part or all.
func (f fleet) written(name string) Choice {
	m, parts := f.nodes[name], f.random.IntN(4)
	c := m.before
	for i, write := range []func(){
		func() { c.Lost = m.after.Lost },
		func() { c.Unknown = m.after.Unknown },
		func() { c.Entering = m.after.Entering },
	} {
		if i < parts {
			write()
		}
	}
	return c
}

// walk follows a packet of a slot from the node where it enters to the node that has its connection, or to the last
// node.
func (f fleet) walk(slot int, enters, has string) (at string, passes int) {
	choices := map[string]Choice{}
	for _, name := range f.names {
		choices[name] = f.written(name)
	}
	at = enters
	if next := choices[at].Entering[slot]; next != "" {
		at = next
	}
	for at != has && passes < MaxPasses {
		next := choices[at].Unknown[slot]
		if lost := choices[at].Lost[slot]; passes > 0 && lost != "" {
			next = lost
		}
		if next == "" {
			break
		}
		at = next
		passes++
	}
	return at, passes
}

// In a cluster of three nodes, a packet finds the node with its connection after any changes, wherever it enters, while
// nodes lag and see several changes as one, and while they write a change.
func TestConnectionsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for run := range 100 {
		f := fleet{[]string{"a", "b", "c"}, random, map[string]*member{}}
		for _, name := range f.names {
			f.nodes[name] = &member{}
			f.nodes[name].follow(name, owners(map[string]uint32{"a": 1, "b": 1, "c": 1}))
			f.nodes[name].before = f.nodes[name].after
		}
		began := f.nodes["a"].port.chains
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
					f.nodes[name].follow(name, owners(weights))
				}
			}
			for range 100 {
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
		text += fmt.Sprintf("%s: %v of %v\n", name, f.nodes[name].port.chains[slot], f.nodes[name].owners)
	}
	return text
}
