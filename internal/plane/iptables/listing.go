package iptables

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// state is the contents of a family's tables.
type state map[table]iptables.Chains

// listing compares the tables of a family with the entries that they should hold. It implements ledger.Listing.
type listing struct {
	*family
	state  state
	chains map[key][]string       // chains of proxies that are not taken yet, without the shared ones
	lines  map[key]map[string]int // how often each rule of the shared chains occurs
}

// newListing indexes the chains of proxies.
func (f *family) newListing(state state) *listing {
	l := &listing{family: f, state: state, chains: map[key][]string{}, lines: map[key]map[string]int{}}
	for t, chains := range state {
		for name, c := range chains {
			k := key{table: t, chain: name}
			switch {
			case k.shared() && !f.abandons(k):
				l.lines[k] = make(map[string]int, len(c.Rules))
				for _, rule := range c.Rules {
					l.lines[k][rule]++
				}
			case kubechain.Proxy(name):
				l.chains[k] = c.Rules
			}
		}
	}
	return l
}

// rules returns the rules of a chain.
func (l *listing) rules(k key) []string { return l.state[k.table][k.chain].Rules }

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had string, is ledger.Match) {
	k := want.Key
	_, found := l.state[k.table][k.chain]
	switch {
	case k.rule != "" && k.shared():
		return l.takeLine(k)
	case k.rule != "": // of KUBE-FIREWALL; kubelet adds the same rule
		found = slices.Contains(l.rules(k), k.rule)
	case !k.ours():
		return l.takeJumps(k, want.Value)
	case found && k.chain != localnet: // kubelet has rules in that one as well
		return l.takeChain(k, want.Value)
	}
	if !found {
		return "", ledger.Absent
	}
	return "", ledger.Equal
}

// takeChain takes a chain with all its rules, or the last ones of a shared chain.
func (l *listing) takeChain(k key, want string) (had string, is ledger.Match) {
	if k.shared() {
		return l.takeTail(k, want)
	}
	found := l.chains[k]
	delete(l.chains, k)
	if !slices.EqualFunc(found, slices.Collect(split(want)), k.alike) {
		return "", ledger.Different
	}
	return want, ledger.Equal
}

// takeLine takes one rule of a shared chain, or the one that it replaces: had.
func (l *listing) takeLine(k key) (had string, is ledger.Match) {
	if l.takeRule(k) {
		return "", ledger.Equal
	}
	if old, restricts := unrestricted(k); restricts && l.takeRule(old) {
		return old.rule, ledger.Different
	}
	return "", ledger.Absent
}

func (l *listing) takeRule(k key) (found bool) {
	lines := l.lines[k.inChain()]
	n := lines[k.rule]
	if n > 0 {
		lines[k.rule] = n - 1
	}
	return n > 0
}

// unrestricted returns, for the rule of a frontend with source ranges, the one that the
// frontend has without them. It must not stay behind the other until the comparison has
// written all Services, as it would admit the packets that the ranges do not.
func unrestricted(k key) (old key, restricts bool) {
	at, chain, restricts := strings.Cut(k.rule, " -j "+rangesPrefix)
	return key{k.table, k.chain, at + " -j " + externalPrefix + chain}, restricts
}

// takeTail takes the rules that come last in a shared chain.
func (l *listing) takeTail(k key, want string) (had string, is ledger.Match) {
	rules, tail, lines := l.rules(k), slices.Collect(split(want)), l.lines[k]
	equal := len(rules) >= len(tail) && slices.Equal(rules[len(rules)-len(tail):], tail)
	for _, rule := range tail {
		equal = equal && lines[rule] == 1
		delete(lines, rule)
	}
	if equal {
		return want, ledger.Equal
	}
	known := slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return !slices.Contains(tail, r) })
	return join(known...), ledger.Different
}

// takeJumps takes the jumps in one of the kernel's chains. They are as wanted if each
// exists once, in order, and none is overtaken.
func (l *listing) takeJumps(k key, want string) (had string, is ledger.Match) {
	rules := l.rules(k)
	found := slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		to := iptables.Target(rule)
		return !toProxy(to) || l.abandons(key{table: k.table, chain: to})
	})
	switch {
	case join(found...) == want && !overtaken(rules, found):
		return want, ledger.Equal
	case len(found) == 0:
		return "", ledger.Absent
	}
	return join(found...), ledger.Different
}

// toProxy reports whether a rule with this target in one of the kernel's own chains belongs
// to a proxy: other programs may use KUBE-MARK-MASQ as well.
func toProxy(target string) bool { return kubechain.Proxy(target) && target != markMasq }

// overtaken reports whether a rule of another program keeps packets from one of our jumps: a terminating one between
// them, as we add them next to each other, or one before them that matches all packets.
func overtaken(rules, jumps []string) bool {
	if len(jumps) == 0 {
		return false
	}
	first, last := slices.Index(rules, jumps[0]), slices.Index(rules, jumps[len(jumps)-1])
	for i, rule := range rules[:last] {
		if terminates(rule) && (i > first || strings.HasPrefix(rule, "-j ")) {
			return true
		}
	}
	return false
}

// terminates reports whether a packet that matches a rule does not reach the rules behind it.
func terminates(rule string) bool {
	return slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT"},
		iptables.Target(rule))
}

// alike reports whether a rule in the kernel is equivalent to the wanted one. In chains of endpoints, and in chains
// that choose an endpoint, it ignores comments: they depend on the number of endpoints, and repeat names of chains. It
// also ignores a match of the protocol without options, which some versions of the programs leave out.
func (k key) alike(found, want string) bool {
	if found == want {
		return true
	}
	aboutEndpoints := slices.ContainsFunc([]string{clusterPrefix, localPrefix, endpointPrefix}, func(prefix string) bool {
		return strings.HasPrefix(k.chain, prefix)
	})
	return aboutEndpoints && bare(found) == bare(want)
}

// bare returns a rule without its comment and without matches that have no options.
func bare(rule string) string {
	rule = uncommented(rule)
	for _, match := range []string{" -m tcp", " -m udp", " -m sctp"} {
		rule = strings.Replace(rule, match+" -j", " -j", 1)
	}
	return rule
}

// uncommented returns a rule without its comment, if that is one of ours: in quotes, and with none in it.
func uncommented(rule string) string {
	before, rest, commented := strings.Cut(rule, `-m comment --comment "`)
	_, after, closed := strings.Cut(rest, `"`)
	if !commented || !closed {
		return rule
	}
	return before + strings.TrimPrefix(after, " ")
}

// Rest implements ledger.Listing. It keeps chains to which rules of other programs jump, without rules.
func (l *listing) Rest() []step {
	var list []step
	for chain, rules := range l.lines {
		for rule, n := range rules {
			for range n {
				list = append(list, step{Op: ledger.Remove, Key: key{chain.table, chain.chain, rule}})
			}
		}
	}
	list = append(list, l.abandoned()...)
	used := l.usedByOthers()
	for k, rules := range l.chains {
		switch {
		case !used[k]:
			list = append(list, step{Op: ledger.Remove, Key: k})
		case len(rules) > 0:
			list = append(list, step{Op: ledger.Empty, Key: k})
		}
	}
	return list
}

// usedByOthers returns the chains to which chains of other programs jump.
func (l *listing) usedByOthers() map[key]bool {
	used := map[key]bool{}
	for t, chains := range l.state {
		for name, c := range chains {
			if kubechain.Proxy(name) {
				continue
			}
			withJumps := slices.Contains(builtin(t), name)
			for _, rule := range c.Rules {
				if to := iptables.Target(rule); !withJumps || !toProxy(to) {
					used[key{table: t, chain: to}] = true
				}
			}
		}
	}
	return used
}
