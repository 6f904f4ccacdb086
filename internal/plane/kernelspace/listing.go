package kernelspace

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// state is what Refresh read, kept up to date by the writer.
type state struct {
	features  hns.Features
	network   hns.Network
	endpoints map[netip.Addr]hns.Endpoint // in the network; one of this host before a remote one
	balancers map[key]balancer            // of this plane
	kept      map[string]bool             // endpoints to which load balancers of other programs refer
}

// balancer is a load balancer in HNS.
type balancer struct {
	id string
	value
}

func (s *state) setEndpoints(list []hns.Endpoint) {
	s.endpoints = map[netip.Addr]hns.Endpoint{}
	for _, e := range list {
		for _, a := range e.Addrs {
			if old, has := s.endpoints[a]; !has || old.Remote {
				s.endpoints[a] = e
			}
		}
	}
}

// ours reports whether an endpoint was made by this plane, an earlier run, or kube-proxy.
func ours(e hns.Endpoint) bool {
	return len(e.Addrs) == 1 && (e.Name == sourceName || e.Remote && strings.EqualFold(e.MAC, hns.MAC(e.Addrs[0])))
}

// sortOut stores the load balancers that refer to an endpoint of the network, or to none at all: they
// are this plane's, those of an earlier run, or kube-proxy's.
func (s *state) sortOut(list []hns.LoadBalancer) {
	s.kept = map[string]bool{}
	addrs := map[string]netip.Addr{}
	for a, e := range s.endpoints {
		addrs[e.ID] = a
	}
	slices.SortFunc(list, func(a, b hns.LoadBalancer) int { return int(a.Target) - int(b.Target) })
	for _, l := range list {
		if len(l.Endpoints) > 0 && !slices.ContainsFunc(l.Endpoints, func(id string) bool { return addrs[id].IsValid() }) {
			for _, id := range l.Endpoints {
				s.kept[id] = true
			}
			continue
		}
		k, v := s.entryOf(l, addrs)
		s.balancers[k] = balancer{l.ID, v}
	}
}

func (s *state) entryOf(l hns.LoadBalancer, addrs map[string]netip.Addr) (key, value) {
	family := route.IPv4
	if l.Flags.IPv6 {
		family = route.IPv6
	}
	k := key{class: frontend, addr: l.VIP, family: family, protocol: l.Protocol, port: l.Port}
	if _, has := s.balancers[k]; has {
		k.target = l.Target
	}
	if _, has := s.balancers[k]; has || l.Other {
		k = key{class: unknown, id: l.ID}
	}
	var names []string
	for _, id := range l.Endpoints {
		name := id // of an endpoint that is gone
		if a, has := addrs[id]; has {
			name = a.String()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return k, value{target: l.Target, endpoints: strings.Join(names, " "), source: l.SourceVIP, flags: l.Flags}
}

// listing compares HNS with the entries that it should hold. It implements ledger.Listing.
type listing struct {
	state     *state
	balancers map[key]balancer
	taken     map[netip.Addr]bool
}

func newListing(s *state) *listing {
	return &listing{state: s, balancers: maps.Clone(s.balancers), taken: map[netip.Addr]bool{}}
}

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had value, is ledger.Match) {
	if want.Key.class != frontend {
		l.taken[want.Key.addr] = true
		if _, has := l.state.endpoints[want.Key.addr]; has {
			return had, ledger.Equal
		}
		return had, ledger.Absent
	}
	l.exchange(want)
	found, has := l.balancers[want.Key]
	delete(l.balancers, want.Key)
	switch {
	case !has:
		return had, ledger.Absent
	case found.value == want.Value:
		return found.value, ledger.Equal
	}
	return found.value, ledger.Different
}

// exchange makes the load balancer that leads to the wanted port of backends the first one of its
// address and port, if it is another one.
func (l *listing) exchange(want entry) {
	first, other := want.Key, want.Key
	other.target = want.Value.target
	if first.target != 0 {
		return
	}
	now, has := l.balancers[other]
	before, hasBefore := l.balancers[first]
	if !has || !hasBefore || before.target == want.Value.target {
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
		if l.taken[a] || !ours(e) || l.state.kept[e.ID] {
			continue
		}
		k := key{class: remote, addr: a}
		if e.Name == sourceName {
			k.class = source
		}
		list = append(list, step{Op: ledger.Remove, Key: k})
	}
	return list
}
