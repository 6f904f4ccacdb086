package nftables

import (
	"encoding/binary"
	"iter"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// formerly is how many times as many backends a port may have had, with numbers that a start adopts.
const formerly = 8

// expected returns which elements the largest sets have if they fit the frontends.
func (l *layout) expected() []nft.ExpectedKeys {
	var all []nft.ExpectedKeys
	for s := range spaces {
		all = append(all, l.rowsOf(backendElement.in(s), frontendElement.in(s), insideElement.in(s)),
			l.rowsOf(outsideBackendElement.in(s), outsideElement.in(s)))
	}
	return append(all, l.addresses())
}

// rowsOf expected the rows in a map of backends from the actions in maps of frontends.
func (l *layout) rowsOf(rows object, frontends ...object) nft.ExpectedKeys {
	return nft.ExpectedKeys{Set: l[rows].Name, Keys: func(state *nft.State) iter.Seq[string] {
		return func(yield func(string) bool) {
			for round := range 3 {
				for _, of := range frontends {
					for frontend, e := range state.Sets[l[of].Name].Elements.All() {
						if !actionIn(e.Data).rows(frontend, round, yield) {
							return
						}
					}
				}
			}
		}
	}}
}

// addresses expected that the address of each frontend is a ClusterIP.
func (l *layout) addresses() nft.ExpectedKeys {
	protocolAndPort := len(nft.Key{}.Proto(0).Port(0))
	return nft.ExpectedKeys{Set: l[clusterIPElement].Name, Keys: func(state *nft.State) iter.Seq[string] {
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

// rows yields the keys of rows to try for a frontend, in three rounds: those among which its action chooses; of a
// port that remembers its clients, those from when it had more backends, and of its other pool. It returns false
// if yield did.
func (a action) rows(frontend string, round int, yield func(string) bool) bool {
	pool, n := 0, a.count()
	switch {
	case a.sticky() && round == 0:
		pool, n = int(a.pool()), a.drawn()
	case a.sticky() && round == 1:
		pool, n = int(a.pool()), a.drawn()*formerly
	case a.sticky():
		pool, n = 1-int(a.pool()), a.drawn()*formerly
	case round > 0:
		return true
	}
	for slot := range n {
		if !yield(rowKey(frontend, number(pool, slot))) {
			return false
		}
	}
	return true
}
