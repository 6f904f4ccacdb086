package cluster

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Peers holds all Nodes of the cluster, for parts that need others than the own one. Sources deliver them only once a
// part has requested them. It is safe for concurrent use.
type Peers struct {
	wanted  chan struct{}
	want    func()
	changed chan struct{}

	mu     sync.Mutex
	nodes  map[string]*Node
	listed bool
}

func newPeers() *Peers {
	p := &Peers{wanted: make(chan struct{}), changed: make(chan struct{}, 1), nodes: map[string]*Node{}}
	p.want = sync.OnceFunc(func() { close(p.wanted) })
	return p
}

// Want requests the Nodes from the source.
func (p *Peers) Want() { p.want() }

// Wanted is closed when a part has requested the Nodes.
func (p *Peers) Wanted() <-chan struct{} { return p.wanted }

// Changed receives a value when All returns something else. Several changes may send only one value.
func (p *Peers) Changed() <-chan struct{} { return p.changed }

// All returns all Nodes sorted by name; listed is false until the source has delivered each once.
func (p *Peers) All() (nodes []*Node, listed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes = slices.SortedFunc(maps.Values(p.nodes), func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, p.listed
}

// Names returns the names of all Nodes.
func (p *Peers) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.nodes))
}

// Set adds or replaces a Node.
func (p *Peers) Set(n *Node) {
	p.update(func() bool {
		same := p.nodes[n.Name].equal(n)
		p.nodes[n.Name] = n
		return !same
	})
}

// Delete removes a Node, if it exists.
func (p *Peers) Delete(name string) {
	p.update(func() bool {
		_, exists := p.nodes[name]
		delete(p.nodes, name)
		return exists
	})
}

// Listed records that the source has delivered all Nodes.
func (p *Peers) Listed() {
	p.update(func() bool {
		first := !p.listed
		p.listed = true
		return first
	})
}

// update makes a change, and announces it if it is one.
func (p *Peers) update(change func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !change() {
		return
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
