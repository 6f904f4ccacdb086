package kernelspace

import (
	"maps"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// listing compares HNS with the entries that it should hold. It implements ledger.Listing.
type listing struct {
	state     *state
	balancers map[key]balancer
	taken     map[netip.Addr]bool
	claims    map[key]class // by address, protocol and port
	twice     []key         // load balancers that entries of two classes need, with the class that is not frontend
}

func newListing(s *state) *listing {
	return &listing{state: s, balancers: maps.Clone(s.balancers), taken: map[netip.Addr]bool{}, claims: map[key]class{}}
}

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had value, is ledger.Match) {
	if !want.Key.class.balancer() {
		return l.takeEndpoint(want)
	}
	k := want.Key.stored()
	if c, claimed := l.claims[k.place()]; claimed && c != want.Key.class {
		k.class = max(c, want.Key.class)
		l.twice = append(l.twice, k)
		return want.Value, ledger.Equal // the first one stays
	}
	l.claims[k.place()] = want.Key.class
	l.exchange(k, want.Value)
	found, has := l.balancers[k]
	delete(l.balancers, k)
	if !has {
		return had, ledger.Absent
	}
	known := l.state.balancers[k]
	known.kind = want.Value.kind
	l.state.balancers[k] = known
	if found.same(want.Value) {
		return want.Value, ledger.Equal
	}
	return found.value, ledger.Different
}

// takeEndpoint compares an endpoint. It keeps endpoints of other programs, and those whose node HNS does not
// return.
func (l *listing) takeEndpoint(want entry) (had value, is ledger.Match) {
	a := want.Key.addr
	l.taken[a] = true
	e, has := l.state.endpoints[a]
	if !has {
		return had, ledger.Absent
	}
	had.provider = e.Provider
	moved := want.Value.provider.IsValid() && e.Provider.IsValid() && e.Provider != want.Value.provider
	otherHost := want.Key.class == vip && !l.state.isHostMAC(e.MAC)
	if l.state.misfit(want.Key, e) || (moved || otherHost) && l.state.owned(e) {
		return had, ledger.Different
	}
	return had, ledger.Equal
}

// exchange makes the load balancer that leads to the wanted port of backends the first one of its
// address and port, if it is another one.
func (l *listing) exchange(first key, want value) {
	other := first
	other.target = want.target
	if first.target != 0 {
		return
	}
	now, has := l.balancers[other]
	before, hasBefore := l.balancers[first]
	if !has || !hasBefore || before.target == want.target {
		return
	}
	third := first
	third.target = before.target
	for _, m := range []map[key]balancer{l.balancers, l.state.balancers} {
		delete(m, other)
		m[first], m[third] = now, before
	}
}

// Rest implements ledger.Listing.
func (l *listing) Rest() []step {
	var list []step
	for k, b := range l.balancers {
		list = append(list, step{Op: ledger.Remove, Key: k, Old: b.value})
	}
	for a, e := range l.state.endpoints {
		if class, _ := l.state.class(e); !l.taken[a] && l.state.owned(e) {
			list = append(list, step{Op: ledger.Remove, Key: key{class: class, addr: a}})
		}
	}
	for id, e := range l.state.hidden {
		if l.state.owned(e) {
			list = append(list, step{Op: ledger.Remove, Key: key{class: remote, addr: e.Addrs[0], id: id}})
		}
	}
	return list
}
