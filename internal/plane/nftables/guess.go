package nftables

import (
	"encoding/binary"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
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
// choose among, and then those that ports which remember their clients may have besides.
func rowsOf(backends nft.Set, frontends ...nft.Set) nft.Guess {
	return nft.Guess{Set: backends.Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, numbers := range []func(action) []span{action.numbers, action.furtherNumbers} {
				for frontend, a := range actionsIn(state, frontends) {
					for _, s := range numbers(a) {
						if !s.rows(frontend, yield) {
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
				if !yield(key[:max(0, len(key)-protocolAndPort)]) {
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

// actionsIn returns the actions in maps of frontends, by the key of the frontend.
func actionsIn(state *nft.State, frontends []nft.Set) iter.Seq2[string, action] {
	return func(yield func(string, action) bool) {
		for _, set := range frontends {
			for key, e := range state.Sets[set.Name].Elements.All() {
				if !yield(key, actionIn(e)) {
					return
				}
			}
		}
	}
}

// actionIn returns the action in an element.
func actionIn(e nft.Element) action {
	if len(e.Data) != 4 {
		return 0
	}
	return action(binary.BigEndian.Uint32([]byte(e.Data)))
}

// span is n numbers of backends.
type span struct {
	first uint32
	n     int
}

// rows yields the keys of the rows of a frontend with these numbers; false: yield returned false.
func (s span) rows(frontend string, yield func(string) bool) bool {
	for i := range uint32(s.n) {
		if !yield(rowKey(frontend, s.first+i)) {
			return false
		}
	}
	return true
}

// numbers returns the numbers of backends from which the action chooses; none for a refusal, a
// guard or a split. Of a port that remembers its clients, some of them have no backend.
func (a action) numbers() []span {
	switch {
	case a.sticky():
		return []span{{number(int(a.pool()), 0), a.drawn()}}
	case a.kind() < kindPlain || a.kind() >= kindSplit:
		return nil
	}
	return []span{{number(0, 0), a.count()}}
}

// furtherNumbers returns numbers that a port may have given to clients when it had more
// backends, up to eight times as many, and those of the other pool.
func (a action) furtherNumbers() []span {
	if !a.sticky() {
		return nil
	}
	n := 8 * a.drawn()
	return []span{{number(int(a.pool()), a.drawn()), n - a.drawn()}, {number(1-int(a.pool()), 0), n}}
}
