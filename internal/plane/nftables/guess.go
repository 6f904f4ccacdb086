package nftables

import (
	"encoding/binary"
	"iter"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// formerly is how many times as many backends a port may have had, with numbers that a start adopts.
const formerly = 8

// guesses returns which elements the largest sets have if they fit the frontends.
func (l *layout) guesses() []nft.Guess {
	var all []nft.Guess
	for s := range spaces {
		all = append(all, l.rowsOf(backendElement.in(s), frontendElement.in(s), insideElement.in(s)),
			l.rowsOf(outsideBackendElement.in(s), outsideElement.in(s)))
	}
	return append(all, l.addresses())
}

// rowsOf guesses the rows in a map of backends from the actions in maps of frontends.
func (l *layout) rowsOf(rows object, frontends ...object) nft.Guess {
	return nft.Guess{Set: l[rows].Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for round := range 3 {
				for _, of := range frontends {
					for frontend, e := range state.Sets[l[of].Name].Elements.All() {
						first, n := actionIn(e.Data).numbers(round)
						for i := range uint32(n) {
							if !yield(rowKey(frontend, first+i)) {
								return
							}
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
	return nft.Guess{Set: l[clusterIPElement].Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for key := range state.Sets[l[frontendElement.in(byAddress)].Name].Elements {
				if !yield(key[:max(0, len(key)-protocolAndPort)]) {
					return
				}
			}
		}
	}}
}

// actionIn returns the action in the data of an element.
func actionIn(data string) action {
	if len(data) != 4 {
		return 0
	}
	return action(binary.BigEndian.Uint32([]byte(data)))
}

// numbers returns the first of n numbers of backends to try, in three rounds: those from which an action chooses;
// of a port that remembers its clients, those from when it had more backends, and of its other pool.
func (a action) numbers(round int) (first uint32, n int) {
	pool := int(a.pool())
	switch {
	case !a.sticky() && round == 0:
		return number(0, 0), a.count()
	case !a.sticky():
		return 0, 0
	case round == 0:
		return number(pool, 0), a.drawn()
	case round == 1:
		return number(pool, 0), a.drawn() * formerly
	}
	return number(1-pool, 0), a.drawn() * formerly
}
