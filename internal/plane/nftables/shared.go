package nftables

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// used adds what a service uses that others may use too: its ClusterIPs, the
// backends that may reach themselves, the ways of its fronts.
func (d *diff) used(svc *route.Service, uses map[use]int32, by int32) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !d.enabled(p.Family) {
			continue
		}
		for _, a := range p.Here {
			uses[use{ip: p.Family, of: hairpin, addr: a.As16()}] += by
		}
		for j := range p.Fronts {
			f := &p.Fronts[j]
			if f.Kind == route.ClusterIP {
				uses[use{ip: p.Family, of: clusterIPs, addr: f.Addr.As16()}] += by
			}
			d.usedWays(p, f, uses, by)
		}
	}
}

func (d *diff) usedWays(p *route.Port, f *route.Front, uses map[use]int32, by int32) {
	w := d.layout.shape(p, f)
	level := atOnce
	note := func(w way, level int) {
		uses[use{ip: p.Family, of: firstWays + shared(level), value: w}] += by
		uses[use{ip: p.Family, value: w}] += by
	}
	if f.Restricted {
		note(d.layout.spaces[spaceOf(f)].way(kindGuard, 0), level)
		level = afterGuard
	}
	note(w.first, level)
	if w.first.kind() == kindSplit {
		note(w.inside, afterSplit)
		note(w.outside, afterSplit)
	}
}

// count adds up the uses and plans what comes into use and what falls out of it.
func (d *diff) count(uses map[use]int32) {
	// Most of what a service uses it used before; the belief is large and cold.
	maps.DeleteFunc(uses, func(_ use, by int32) bool { return by == 0 })
	for _, u := range slices.SortedFunc(maps.Keys(uses), use.compare) {
		by := uses[u]
		had := d.belief.uses[u]
		has := had + by
		if has > 0 {
			d.belief.uses[u] = has
		} else {
			delete(d.belief.uses, u)
		}
		switch {
		case had <= 0 && has > 0:
			d.begin(u)
		case had > 0 && has <= 0:
			d.end(u)
		}
	}
}

// compare puts what is used into a fixed order: a plan reads the same each time.
func (u use) compare(v use) int {
	return cmp.Or(cmp.Compare(u.ip, v.ip), cmp.Compare(u.of, v.of), bytes.Compare(u.addr[:], v.addr[:]), cmp.Compare(u.value, v.value))
}

// set returns the set or map that the use is an element of; nil: it is a chain.
func (u use) set(l *layout) *nft.Set {
	switch u.of {
	case wayChain:
		return nil
	case clusterIPs:
		return &l.clusterIPs
	case hairpin:
		return &l.hairpin
	default:
		return &l.ways[u.of-firstWays]
	}
}

func (d *diff) begin(u use) {
	t := d.table(u.ip)
	for _, c := range d.goes(u) {
		d.plan.add(made, step{do: setChain, table: t, chain: &c})
	}
	if set := u.set(&d.layout); set != nil {
		at, _ := d.layout.comeAndGo(set)
		d.plan.add(at, step{do: addElement, table: t, set: set, elem: u.element(&d.layout)})
	}
}

func (d *diff) end(u use) {
	t := d.table(u.ip)
	for _, c := range d.goes(u) {
		d.plan.dropChain(t, c.Name)
	}
	if set := u.set(&d.layout); set != nil {
		_, at := d.layout.comeAndGo(set)
		d.plan.add(at, step{do: deleteElement, table: t, set: set, elem: u.element(&d.layout)})
	}
}

// goes returns the chains of a way in use.
func (d *diff) goes(u use) []nft.Chain {
	if u.of != wayChain {
		return nil
	}
	for _, f := range d.families {
		if f.ip == u.ip {
			return d.builder(f, d.host).goes(u.value)
		}
	}
	return nil
}

// element renders what is shared.
func (u use) element(l *layout) nft.Element {
	addr := netip.AddrFrom16(u.addr).Unmap()
	switch u.of {
	case clusterIPs:
		return nft.Element{Key: string(nft.Key{}.Addr(addr))}
	case hairpin:
		return nft.Element{Key: string(nft.Key{}.Addr(addr).Addr(addr))}
	default:
		return nft.Element{Key: u.value.data(), Goto: u.value.chain(l)}
	}
}

// rehost plans a change of what holds for the whole node.
func (d *diff) rehost(old *route.Host) {
	for _, f := range d.families {
		before, now := d.builder(f, old), d.builder(f, d.host)
		d.ofHost(f.table, func(set *nft.Set) (had, has []nft.Element) {
			return before.elementsOf(set), now.elementsOf(set)
		})
		had, has := d.chains(before), d.chains(now)
		d.chainsDiffer(f.table, had, has)
	}
}

// ofHost plans the sets whose elements the host decides. Ways ask for pods.
func (d *diff) ofHost(t nft.Table, states func(*nft.Set) (old, now []nft.Element)) {
	old, now := states(&d.layout.podCIDRs)
	d.ranges(t, &d.layout.podCIDRs, old, now)
	for _, set := range []*nft.Set{&d.layout.serviceCIDRs, &d.layout.nodeIPs} {
		old, now := states(set)
		d.ordered(t, set, old, now)
	}
}

// elementsOf renders the elements of a set that the host decides.
func (b builder) elementsOf(set *nft.Set) []nft.Element {
	switch set {
	case &b.podCIDRs:
		return ranges(b.ip, b.host.Detector.PodCIDRs)
	case &b.serviceCIDRs:
		return ranges(b.ip, b.host.ServiceCIDRs)
	}
	return addresses(b.ip, b.host.NodePorts.Addrs)
}

// chains returns all chains but those of single services.
func (d *diff) chains(b builder) map[string]nft.Chain {
	all := map[string]nft.Chain{}
	for _, c := range b.fixed() {
		all[c.Name] = c
	}
	for u := range d.belief.uses {
		if u.of != wayChain || u.ip != b.ip {
			continue
		}
		for _, c := range b.goes(u.value) {
			all[c.Name] = c
		}
	}
	return all
}

// chainsDiffer plans the difference between two sets of chains.
func (d *diff) chainsDiffer(t nft.Table, old, now map[string]nft.Chain) {
	for _, name := range inOrder(now) {
		if o, ok := old[name]; !ok || !sameRules(o, now[name]) {
			d.plan.add(made, step{do: setChain, table: t, chain: new(now[name])})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, ok := now[name]; !ok {
			d.plan.dropChain(t, name)
		}
	}
}

// inOrder returns the names of chains so that none leads to a later one: base
// chains come last; of the others, those that lead further are named so.
func inOrder(chains map[string]nft.Chain) []string {
	return slices.SortedFunc(maps.Keys(chains), func(a, b string) int {
		if base := chains[a].Hook != nil; base != (chains[b].Hook != nil) {
			if base {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
}

func sameRules(a, b nft.Chain) bool {
	return slices.EqualFunc(a.Rules, b.Rules, func(x, y nft.Rule) bool { return x.String() == y.String() })
}
