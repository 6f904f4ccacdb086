package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// state is what a family's tables hold.
type state map[table]iptables.Chains

// listing compares the tables of a family with what they should hold. It
// implements ledger.Listing.
type listing struct {
	seen   state
	chains map[key][]string       // owned by proxies, not taken yet; without the shared ones
	lines  map[key]map[string]int // of shared chains: how often each rule is there
	behind map[key][]string       // rules of others that end a packet's way, behind our jumps
}

// newListing sorts out what belongs to proxies. Behind is what an earlier listing
// found there.
func newListing(seen state, behind map[key][]string) *listing {
	l := &listing{seen: seen, chains: map[key][]string{}, lines: map[key]map[string]int{}, behind: map[key][]string{}}
	maps.Copy(l.behind, behind)
	for t, chains := range seen {
		for name, c := range chains {
			k := key{table: t, chain: name}
			switch {
			case k.shared():
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
func (l *listing) rules(k key) []string { return l.seen[k.table][k.chain].Rules }

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (had string, is ledger.Match) {
	k := want.Key
	chain := key{table: k.table, chain: k.chain}
	switch {
	case k.rule != "" && !k.shared(): // it only has to be there; kubelet makes the same
		if slices.Contains(l.rules(k), iptables.Canonical(k.rule)) {
			return "", ledger.Equal
		}
		return "", ledger.Absent
	case k.rule != "":
		return l.takeLines(chain, want)
	case !k.ours():
		return l.takeJumps(k, want.Value)
	case k.shared():
		return l.takeTail(k, want.Value)
	case k.chain == localnet: // not only ours: what is in it stays
		if _, there := l.seen[k.table][k.chain]; there {
			return "", ledger.Equal
		}
		return "", ledger.Absent
	}
	return l.takeChain(k, want.Value)
}

// takeChain takes a chain whose rules all belong to one entry.
func (l *listing) takeChain(k key, want string) (had string, is ledger.Match) {
	rules, there := l.chains[k]
	delete(l.chains, k)
	if !there {
		return "", ledger.Absent
	}
	i := 0
	for rule := range k.rules(want) {
		if i >= len(rules) || !k.alike(rules[i], rule) {
			return "", ledger.Different
		}
		i++
	}
	if i < len(rules) {
		return "", ledger.Different
	}
	return want, ledger.Equal
}

// takeLines takes rules of a shared chain.
func (l *listing) takeLines(chain key, want entry) (had string, is ledger.Match) {
	there, n := l.lines[chain], 0
	var got []string
	for rule := range want.Key.rules(want.Value) {
		n++
		if there[rule] == 0 {
			rule = iptables.Canonical(rule)
		}
		if there[rule] > 0 {
			there[rule]--
			got = append(got, rule)
		}
	}
	switch len(got) {
	case n:
		return "", ledger.Equal
	case 0:
		return "", ledger.Absent
	}
	return join(got...), ledger.Different
}

// takeTail takes a shared chain, and the rules that come last there.
func (l *listing) takeTail(k key, want string) (had string, is ledger.Match) {
	there, ok := l.lines[k]
	if !ok {
		return "", ledger.Absent
	}
	rules, tail := l.rules(k), canonical(want)
	right := len(rules) >= len(tail) && slices.Equal(rules[len(rules)-len(tail):], tail)
	for _, rule := range tail {
		right = right && there[rule] == 1
		delete(there, rule)
	}
	if right {
		return want, ledger.Equal
	}
	return join(slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return !slices.Contains(tail, r) })...), ledger.Different
}

func canonical(value string) []string {
	var list []string
	for rule := range (key{}).rules(value) {
		list = append(list, iptables.Canonical(rule))
	}
	return list
}

// takeJumps takes the jumps of a chain of the kernel. They are right if each is
// there once and in order, and no rule of others that would end a packet's way has
// come before them.
func (l *listing) takeJumps(k key, want string) (had string, is ledger.Match) {
	rules := l.rules(k)
	have := slices.DeleteFunc(slices.Clone(rules), func(rule string) bool { return !leads(iptables.Target(rule)) })
	if slices.Equal(have, canonical(want)) && !overtaken(rules, have, l.behind[k]) {
		l.behind[k] = slices.DeleteFunc(slices.Clone(rules[lastJump(rules, have):]), goesOn)
		return want, ledger.Equal
	}
	l.behind[k] = slices.DeleteFunc(slices.Clone(rules), goesOn)
	if len(have) == 0 {
		return "", ledger.Absent
	}
	return join(have...), ledger.Different
}

// leads reports whether a rule of one of the kernel's own chains with this target
// belongs to a proxy: KUBE-MARK-MASQ is for others to use as well.
func leads(target string) bool { return kubechain.Proxy(target) && target != markMasq }

// goesOn reports whether a packet that matches a rule reaches the rules behind it.
func goesOn(rule string) bool {
	return !slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT"}, iptables.Target(rule))
}

// lastJump returns the index of the last of our jumps.
func lastJump(rules, jumps []string) int {
	if len(jumps) == 0 {
		return 0
	}
	return slices.Index(rules, jumps[len(jumps)-1])
}

// overtaken reports whether a rule that ends packets' way has come before our
// last jump: one that was behind it, one for all packets, or one between our
// jumps, which have been put in front together.
func overtaken(rules, jumps, behind []string) bool {
	if len(jumps) == 0 {
		return false
	}
	ends := func(rule string) bool { return !goesOn(rule) }
	first := slices.Index(rules, jumps[0])
	return slices.ContainsFunc(rules[first:lastJump(rules, jumps)], ends) || slices.ContainsFunc(rules[:first], func(rule string) bool {
		return ends(rule) && (strings.HasPrefix(rule, "-j ") || slices.Contains(behind, rule))
	})
}

// Rest implements ledger.Listing. Chains that others jump to stay, without rules.
func (l *listing) Rest() []step {
	var list []step
	for chain, rules := range l.lines {
		for rule, n := range rules {
			for range n {
				list = append(list, step{Op: ledger.Remove, Key: key{chain.table, chain.chain, rule}})
			}
		}
	}
	led := ledTo(l.seen)
	for k, rules := range l.chains {
		switch {
		case !led[k]:
			list = append(list, step{Op: ledger.Remove, Key: k})
		case len(rules) > 0:
			list = append(list, step{Op: ledger.Change, Key: k})
		}
	}
	return list
}

// ledTo returns the chains that chains of others lead to.
func ledTo(seen state) map[key]bool {
	led := map[key]bool{}
	for t, chains := range seen {
		for name, c := range chains {
			if kubechain.Proxy(name) {
				continue
			}
			mine := slices.Contains(builtin(t), name)
			for _, rule := range c.Rules {
				if to := iptables.Target(rule); !mine || !leads(to) {
					led[key{table: t, chain: to}] = true
				}
			}
		}
	}
	return led
}

// alike reports whether a rule that was found is the wanted one. Comments in the
// chains of endpoints and in those that choose an endpoint do not matter: they come
// and go with the number of endpoints, and repeat what the names of chains say.
func (k key) alike(had, want string) bool {
	if had == want {
		return true
	}
	if want = iptables.Canonical(want); had == want {
		return true
	}
	about := slices.ContainsFunc([]string{clusterPrefix, localPrefix, endpointPrefix}, func(prefix string) bool {
		return strings.HasPrefix(k.chain, prefix)
	})
	return about && uncommented(had) == uncommented(want)
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

// removal is a listing of which nothing stays, except what is lent out. Network
// plugins have packets masqueraded by a jump to KUBE-MARK-MASQ, as kube-proxy's
// documents advise; where they do, that goes on working.
type removal struct{ seen state }

// Take implements ledger.Listing: nothing is wanted.
func (r removal) Take(entry) (had string, is ledger.Match) { return "", ledger.Absent }

// Rest implements ledger.Listing.
func (r removal) Rest() []step {
	var list []step
	for t, chains := range r.seen {
		lent := lentOut(chains)
		goes := func(name string) bool { return kubechain.Proxy(name) && !slices.Contains(lent, name) }
		for _, name := range slices.Sorted(maps.Keys(chains)) {
			if goes(name) {
				list = append(list, step{Op: ledger.Remove, Key: key{table: t, chain: name}})
				continue
			}
			for _, rule := range chains[name].Rules {
				if goes(iptables.Target(rule)) {
					list = append(list, step{Op: ledger.Remove, Key: key{t, name, rule}})
				}
			}
		}
	}
	return list
}

func lentOut(chains iptables.Chains) []string {
	for name, c := range chains {
		if !kubechain.Proxy(name) && slices.ContainsFunc(c.Rules, func(r string) bool { return iptables.Target(r) == markMasq }) {
			return []string{markMasq, postrouting}
		}
	}
	return nil
}
