package nftables

import (
	"encoding/binary"
	"iter"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// guesses returns which rows the maps of backends have if they fit the actions of the
// frontends. These maps have several times as many elements as all others.
func (l *layout) guesses() nft.Guesses {
	all := nft.Guesses{}
	for i := range l.spaces {
		s := &l.spaces[i]
		all[s.backends.Name] = l.rows(s.frontends, s.guarded, s.inside)
		all[s.outsideBackends.Name] = l.rows(s.outside)
	}
	return all
}

// rows returns the keys of the rows that the actions in maps of frontends choose among. Of a port
// that remembers its clients, some of the numbers have no backend.
func (l *layout) rows(frontends ...nft.Set) func(*nft.State) iter.Seq[string] {
	return func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, set := range frontends {
				for key, e := range state.Sets[set.Name].Elements {
					first, n := actionIn(e).numbers()
					for i := range uint32(n) {
						if !yield(rowKey(key, first+i)) {
							return
						}
					}
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
