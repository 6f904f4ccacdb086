package nftables

import (
	"encoding/binary"
	"iter"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// guesses returns which elements the largest sets have if they fit the frontends.
func (l *layout) guesses() []nft.Guess {
	var all []nft.Guess
	for s := range spaces {
		from := []object{frontendElement.in(s), insideElement.in(s)}
		if s == byAddress {
			from = append(from, guardedElement)
		}
		all = append(all, l.rowsOf(backendElement.in(s), from...),
			l.rowsOf(outsideBackendElement.in(s), outsideElement.in(s)))
	}
	return append(all, l.addresses())
}

// rowsOf guesses the rows in a map of backends: those that the actions in maps of frontends
// choose among, and then those that ports which remember their clients may have besides.
func (l *layout) rowsOf(rows object, frontends ...object) nft.Guess {
	return nft.Guess{Set: l[rows].Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, numbers := range []func(action) []span{action.numbers, action.formerNumbers} {
				for _, of := range frontends {
					for frontend, e := range state.Sets[l[of].Name].Elements.All() {
						if !eachRow(frontend, numbers(actionIn(e)), yield) {
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

// eachRow yields the keys of the rows of a frontend with these numbers; false: yield returned false.
func eachRow(frontend string, numbers []span, yield func(string) bool) bool {
	for _, s := range numbers {
		for i := range uint32(s.n) {
			if !yield(rowKey(frontend, s.first+i)) {
				return false
			}
		}
	}
	return true
}

// numbers returns the numbers of backends from which the action chooses, if it is no refusal, guard or
// split. Of a port that remembers its clients, some of them have no backend.
func (a action) numbers() []span {
	if a.sticky() {
		return []span{{number(int(a.pool()), 0), a.drawn()}}
	}
	return []span{{number(0, 0), a.count()}}
}

// formerNumbers returns numbers of both pools that a port may have given to clients when it had up to
// eight times as many backends.
func (a action) formerNumbers() []span {
	if !a.sticky() {
		return nil
	}
	return []span{{number(0, 0), 8 * a.drawn()}, {number(1, 0), 8 * a.drawn()}}
}
