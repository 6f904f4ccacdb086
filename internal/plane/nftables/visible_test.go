package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// rangeLookup is a look-up of clients in ranges: those that a frontend allows, or those of pods.
type rangeLookup struct {
	table    nft.Table
	set      string
	frontend string // its key; empty for pods
}

// rangesAndRules are the ranges of a look-up, and the frontends or chains that use it.
type rangesAndRules struct{ ranges, users []string }

// rangeLookups returns the look-ups of all tables of a fake kernel.
func (a *audit) rangeLookups() map[rangeLookup]rangesAndRules {
	all := map[rangeLookup]rangesAndRules{}
	for _, ip := range route.Families() {
		table := tableFor(ip)
		state := a.fake.Tables[table]
		if state == nil {
			continue
		}
		pods := rangeLookup{table, a.layout[podRanges].Name, ""}
		var of rangesAndRules
		for _, e := range state.Sets[pods.set].Elements.All() {
			of.ranges = append(of.ranges, e.Key+e.End)
		}
		for name, rules := range a.fake.Rules[table] {
			if slices.ContainsFunc(rules, func(r nft.Rule) bool { return strings.Contains(r.String(), "@"+pods.set) }) {
				of.users = append(of.users, name)
			}
		}
		all[pods] = of
		a.guards(ip, state, all)
	}
	return all
}

// guards adds the look-ups of the frontends with source ranges.
func (a *audit) guards(ip route.Family, state *nft.State, all map[rangeLookup]rangesAndRules) {
	for _, e := range state.Sets[a.layout[allowedRanges].Name].Elements.All() {
		q := rangeLookup{tableFor(ip), a.layout[allowedRanges].Name, e.Key[:len(e.Key)-tableFor(ip).Family.AddrLen()]}
		all[q] = rangesAndRules{ranges: append(all[q].ranges, e.Key+e.End), users: all[q].users}
	}
	for key, e := range state.Sets[a.layout[frontendElement.in(byAddress)].Name].Elements.All() {
		if actionIn(e.Data).guarded() {
			q := rangeLookup{tableFor(ip), a.layout[allowedRanges].Name, key}
			all[q] = rangesAndRules{ranges: all[q].ranges, users: append(all[q].users, key)}
		}
	}
}

// notYetVisible returns an error if a transaction adds ranges together with a frontend or
// chain that uses them. Packets see the ranges of a transaction later than the rest of it.
func notYetVisible(before, now map[rangeLookup]rangesAndRules) error {
	for q, next := range now {
		old := before[q]
		slices.Sort(next.ranges)
		slices.Sort(old.ranges)
		for _, user := range next.users {
			if !slices.Contains(old.users, user) && !slices.Equal(next.ranges, old.ranges) {
				return fmt.Errorf("%s %s: %q uses ranges that the same transaction adds", q.table, q.set, user)
			}
		}
	}
	return nil
}
