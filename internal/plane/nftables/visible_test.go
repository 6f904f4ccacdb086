package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// rangeLookup is a look-up of clients in ranges: those that a frontend allows, or those of
// pods.
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
	for _, f := range everyFamily() {
		state := a.fake.Tables[f.table]
		if state == nil {
			continue
		}
		pods := rangeLookup{f.table, a.layout.podCIDRs.Name, ""}
		var of rangesAndRules
		for _, e := range state.Sets[pods.set].Elements.All() {
			of.ranges = append(of.ranges, e.Key+e.End)
		}
		for name, rules := range a.fake.Rules[f.table] {
			if slices.ContainsFunc(rules, func(r nft.Rule) bool { return strings.Contains(r.String(), "@"+pods.set) }) {
				of.users = append(of.users, name)
			}
		}
		all[pods] = of
		for i := range a.layout.spaces {
			a.guards(f, state, &a.layout.spaces[i], all)
		}
	}
	return all
}

// guards adds the look-ups of the frontends of one space.
func (a *audit) guards(f family, state *nft.State, s *space, all map[rangeLookup]rangesAndRules) {
	for _, e := range state.Sets[s.allowed.Name].Elements.All() {
		q := rangeLookup{f.table, s.allowed.Name, e.Key[:len(e.Key)-addrLen(f.ip)]}
		all[q] = rangesAndRules{ranges: append(all[q].ranges, e.Key+e.End), users: all[q].users}
	}
	for key, e := range state.Sets[s.frontends.Name].Elements.All() {
		if e.Data == s.action(kindGuard, 0).data() {
			q := rangeLookup{f.table, s.allowed.Name, key}
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
