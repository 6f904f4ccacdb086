package nftables

import (
	"encoding/binary"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// guesses returns which elements the largest sets have if they fit the frontends.
func (l *layout) guesses() []nft.Guess {
	var rows []nft.Guess
	for i := range l.spaces {
		s := &l.spaces[i]
		rows = append(rows, rowsOf(s.backends, s.frontends, s.guarded, s.inside), rowsOf(s.outsideBackends, s.outside))
	}
	return append(slices.Clone(rows), l.addresses(), l.hairpins(rows))
}

// rowsOf guesses the rows in a map of backends: those that the actions in maps of frontends
// choose among. Of a port that remembers its clients, some of the numbers have no backend.
func rowsOf(backends nft.Set, frontends ...nft.Set) nft.Guess {
	return nft.Guess{Set: backends.Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, set := range frontends {
				for key, e := range state.Sets[set.Name].Elements.All() {
					first, n := actionIn(e).numbers()
					for i := range uint32(n) {
						if !yield(rowKey(key, first+i)) {
							return
						}
					}
				}
			}
		}
	}}
}

// addresses guesses that the address of each frontend is a ClusterIP.
func (l *layout) addresses() nft.Guess {
	protocolAndPort := len(nft.Key{}.Proto(0).Port(0))
	return nft.Guess{Set: l.clusterIPs.Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for key := range state.Sets[l.spaces[byAddress].frontends.Name].Elements {
				if !yield(key[:len(key)-protocolAndPort]) {
					return
				}
			}
		}
	}}
}

// hairpins guesses that each backend is on this node.
func (l *layout) hairpins(backends []nft.Guess) nft.Guess {
	port := len(nft.Key{}.Port(0))
	return nft.Guess{Set: l.hairpin.Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, rows := range backends {
				for _, e := range state.Sets[rows.Set].Elements.All() {
					addr := e.Data[:max(0, len(e.Data)-port)]
					if !yield(addr + addr) {
						return
					}
				}
			}
		}
	}}
}

// actionIn returns the action in an element.
func actionIn(e nft.Element) action {
	if len(e.Data) != 4 {
		return 0
	}
	return action(binary.BigEndian.Uint32([]byte(e.Data)))
}

// numbers returns the first number of a backend from which the action chooses, and how many
// there are; none for a refusal, a guard or a split.
func (a action) numbers() (first uint32, n int) {
	switch {
	case a.sticky():
		return number(int(a.pool()), 0), a.drawn()
	case a.kind() < kindPlain || a.kind() >= kindSplit:
		return 0, 0
	}
	return number(0, 0), a.count()
}
