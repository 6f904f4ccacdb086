package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// question is what packets look up among ranges: whether a client is let in by
// one front, or is a pod.
type question struct {
	table nft.Table
	set   string
	front string // its key; none for pods
}

// answer is which ranges there are, and who asks: fronts, or chains.
type answer struct{ ranges, asks []string }

// questions are those of all tables of a fake kernel.
func (a *audit) questions() map[question]answer {
	all := map[question]answer{}
	for _, f := range everyFamily() {
		state := a.fake.Tables[f.table]
		if state == nil {
			continue
		}
		pods := question{f.table, a.layout.podCIDRs.Name, ""}
		var who answer
		for _, e := range state.Sets[pods.set].Elements {
			who.ranges = append(who.ranges, e.Key+e.End)
		}
		for name, rules := range a.fake.Rules[f.table] {
			if slices.ContainsFunc(rules, func(r nft.Rule) bool { return strings.Contains(r.String(), "@"+pods.set) }) {
				who.asks = append(who.asks, name)
			}
		}
		all[pods] = who
		for i := range a.layout.spaces {
			a.guards(f, state, &a.layout.spaces[i], all)
		}
	}
	return all
}

// guards adds the questions of the fronts of one space.
func (a *audit) guards(f family, state *nft.State, s *space, all map[question]answer) {
	for _, e := range state.Sets[s.allowed.Name].Elements {
		q := question{f.table, s.allowed.Name, e.Key[:len(e.Key)-addrLen(f.ip)]}
		all[q] = answer{ranges: append(all[q].ranges, e.Key+e.End), asks: all[q].asks}
	}
	for key, e := range state.Sets[s.fronts.Name].Elements {
		if e.Data == s.way(kindGuard, 0).data() {
			q := question{f.table, s.allowed.Name, key}
			all[q] = answer{ranges: all[q].ranges, asks: append(all[q].asks, key)}
		}
	}
}

// late says who begins to ask with the transaction that brings the ranges. The
// kernel shows packets the ranges of a transaction later than the rest of it.
func late(before, now map[question]answer) error {
	for q, is := range now {
		was := before[q]
		slices.Sort(is.ranges)
		slices.Sort(was.ranges)
		for _, who := range is.asks {
			if !slices.Contains(was.asks, who) && !slices.Equal(is.ranges, was.ranges) {
				return fmt.Errorf("%s %s: %q asks as soon as its ranges come", q.table, q.set, who)
			}
		}
	}
	return nil
}
