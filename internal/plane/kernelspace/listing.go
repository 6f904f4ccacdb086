package kernelspace

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// listing compares HNS with the entries that it should hold. It implements ledger.Listing.
type listing struct {
	state    *state
	reserved map[netip.Addr]class // addresses whose endpoints belong to a class
	found    map[key][]found      // by place
	taken    map[netip.Addr]bool  // addresses of wanted endpoints
}

func newListing(s *state, reserved map[netip.Addr]class) *listing {
	s.retireUnfit(reserved)
	return &listing{state: s, reserved: reserved, found: maps.Clone(s.found), taken: map[netip.Addr]bool{}}
}

// Take implements ledger.Listing. An object that has to be replaced is absent, and Rest deletes it. A load balancer
// at the place of another entry is absent too: HNS decides whether it accepts a second one.
func (l *listing) Take(want entry) (had value, is ledger.Match) {
	if !want.Key.class.balancer() {
		l.taken[want.Key.addr] = true
		_, has := l.state.endpoints[want.Key.addr]
		if c, is := l.reserved[want.Key.addr]; has || is && c != want.Key.class {
			return had, ledger.Equal
		}
		return had, ledger.Absent
	}
	wanted, missing := l.state.document(want.Key, want.Value)
	// It is complete if no missing endpoint is created now.
	complete := !slices.ContainsFunc(missing, func(a netip.Addr) bool { return l.taken[a] })
	place := want.Key.place()
	i := slices.IndexFunc(l.found[place], func(f found) bool { return !l.replaced(f) })
	if i < 0 && complete && len(wanted.Endpoints) == 0 {
		return had, ledger.Equal
	}
	if i < 0 {
		return had, ledger.Absent
	}
	found := l.found[place][i]
	l.found[place] = slices.Delete(slices.Clone(l.found[place]), i, i+1)
	l.state.balancers[want.Key] = found.LoadBalancer
	if complete && found.Same(wanted) {
		return had, ledger.Equal
	}
	return had, ledger.Different
}

// replaced reports whether a load balancer is deleted before another one is created in its place: it is not as it was
// written, or refers to an endpoint that is replaced.
func (l *listing) replaced(f found) bool {
	return f.differs || slices.ContainsFunc(f.Endpoints, func(id string) bool { return l.state.unfit[id].ID != "" })
}

// Rest implements ledger.Listing.
func (l *listing) Rest() []step {
	var list []step
	for _, all := range l.found {
		for _, f := range all {
			k := keyOf(f.LoadBalancer)
			l.state.balancers[k] = f.LoadBalancer
			list = append(list, step{Op: ledger.Remove, Key: k, Old: value{
				target: f.Target, endpoints: strings.Join(f.Endpoints, " "), source: f.SourceVIP, flags: f.Flags,
			}})
		}
	}
	for a, e := range l.state.endpoints {
		if class, ours := l.state.class(e); ours && !l.taken[a] {
			list = append(list, step{Op: ledger.Remove, Key: key{class: class, addr: a}})
		}
	}
	for id, e := range l.state.unfit {
		list = append(list, step{Op: ledger.Remove, Key: key{class: remote, addr: e.Addrs[0], id: id}})
	}
	return list
}
