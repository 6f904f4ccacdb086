package iptables

import (
	"maps"
	"slices"
)

// differences says what changed between two looks at a table, but for chains
// that input of ours named.
func differences(was, is Digest, mine func(chain string) bool) []string {
	var all []string
	for _, name := range names(was.Chains, is.Chains) {
		before, there := was.Chains[name]
		after, still := is.Chains[name]
		switch {
		case mine(name):
		case there != still:
			all = append(all, "chain "+name)
		case before != after:
			all = append(all, "rule of "+name)
		}
	}
	for _, name := range names(was.Others, is.Others) {
		if !mine(name) && moved(was.Others[name], is.Others[name]) {
			all = append(all, "rule of "+name)
		}
	}
	return all
}

func names[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// moved reports whether the rules of a chain that lead to ours differ, or have
// another position among the rules that were there before and still are. Added and
// deleted rules of other programs do not count, unless no packet gets past them.
func moved(was, is []Entry) bool {
	return !slices.EqualFunc(sections(was, is), sections(is, was), slices.Equal)
}

// sections returns the rules that another list of rules has as well, in sections
// that end with each rule that leads to ours. Within a section order is nothing.
func sections(entries, also []Entry) [][]uint64 {
	there := make(map[uint64]int, len(also))
	for _, e := range also {
		there[e.Sum]++
	}
	all := [][]uint64{}
	var section []uint64
	for _, e := range entries {
		if !e.Leads && (there[e.Sum] > 0 || e.Ends) {
			there[e.Sum]--
			section = append(section, e.Sum)
		}
		if e.Leads {
			slices.Sort(section)
			all = append(all, append(section, e.Sum))
			section = nil
		}
	}
	slices.Sort(section)
	return append(all, section)
}
