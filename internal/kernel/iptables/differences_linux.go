package iptables

import (
	"maps"
	"slices"
)

// differences lists what changed in a table between two digests, except in chains that
// the input of a Restore named.
func differences(before, after Digest, written func(chain string) bool) []string {
	var all []string
	for _, name := range names(before.Chains, after.Chains) {
		oldSum, existed := before.Chains[name]
		newSum, exists := after.Chains[name]
		switch {
		case written(name):
		case existed != exists:
			all = append(all, "chain "+name)
		case oldSum != newSum:
			all = append(all, "rule of "+name)
		}
	}
	for _, name := range names(before.Others, after.Others) {
		if !written(name) && moved(before.Others[name], after.Others[name]) {
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

// moved reports whether the rules of a chain that jump to chains of the proxy differ, or
// have another position among the rules that are in both lists. Added and deleted rules of
// other programs do not count, unless no packet gets past them.
func moved(before, after []Entry) bool {
	return !slices.EqualFunc(sections(before, after), sections(after, before), slices.Equal)
}

// sections returns the rules that are also in another list, in sections that end with
// each rule that jumps to a chain of the proxy. The order within a section does not matter.
func sections(entries, other []Entry) [][]uint64 {
	common := make(map[uint64]int, len(other))
	for _, e := range other {
		common[e.Sum]++
	}
	all := [][]uint64{}
	var section []uint64
	for _, e := range entries {
		if !e.Leads && (common[e.Sum] > 0 || e.Ends) {
			common[e.Sum]--
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
