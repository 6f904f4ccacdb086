package iptables

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
)

// alike reports whether a rule that was found is the one that should be. Comments
// in chains of endpoints and of those who choose them make no difference: they come
// and go with the number of endpoints, and say what the names of chains do.
func (c chain) alike(had, rule string) bool {
	if had == rule {
		return true
	}
	if rule = iptables.Canonical(rule); had == rule {
		return true
	}
	return c.aboutEndpoints() && uncommented(had) == uncommented(rule)
}

func (c chain) aboutEndpoints() bool {
	return slices.ContainsFunc([]string{clusterPrefix, localPrefix, endpointPrefix}, func(prefix string) bool {
		return strings.HasPrefix(c.name, prefix)
	})
}

// uncommented returns a rule, as it was found, without its comment.
func uncommented(rule string) string {
	const match = "-m comment --comment "
	before, rest, commented := strings.Cut(rule, match)
	if !commented {
		return rule
	}
	if !strings.HasPrefix(rest, `"`) {
		_, after, _ := strings.Cut(rest, " ")
		return before + after
	}
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			return before + strings.TrimPrefix(rest[i+1:], " ")
		}
	}
	return rule
}
