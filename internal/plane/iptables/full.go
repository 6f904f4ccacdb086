package iptables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// everything plans the difference between what the kernel holds and what it
// should: adoption at start, take-over in place, and repair.
func (d *diff) everything(seen state) {
	for _, t := range everyTable() {
		d.totals[tableKey{d.ip, t}] = 0
	}
	d.endpoints = 0
	for _, svc := range d.table.Services {
		d.endpoints += d.size(svc)
	}
	d.weigh()
	found := d.look(seen)
	for _, c := range d.fixed(d.host, d.opt) {
		d.own(&d.plan.first, c, found)
	}
	for _, c := range d.shared(d.host) {
		d.tailed(c, found)
	}
	d.plan.left = d.services(found)
	d.inKernel = func(name cluster.Name) *route.Service {
		if svc, ok := d.plan.left[name]; ok {
			return svc
		}
		return d.table.Services[name]
	}
	d.leftovers(seen, found)
	for _, t := range everyTable() {
		for _, chain := range builtin(t) {
			d.lead(t, chain, seen[t][chain].Rules)
		}
	}
	d.protect(seen)
	d.rewrite()
}

// inNameOrder returns the Services, the API server's own first.
func inNameOrder(t *route.Table) []cluster.Name {
	names := slices.AppendSeq(make([]cluster.Name, 0, len(t.Services)), maps.Keys(t.Services))
	slices.SortFunc(names, func(a, b cluster.Name) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Compare(b)) })
	return names
}

func rank(n cluster.Name) int {
	if n == (cluster.Name{Namespace: "default", Name: "kubernetes"}) {
		return 0
	}
	return 1
}

// found is what of the kernel's state is ours and not known to be right yet.
type found struct {
	chains map[ref][]string       // whole
	lines  map[ref]map[string]int // of shared chains: how often each is there
	order  map[ref][]string       // of shared chains
}

// look sorts out what is ours.
func (d *diff) look(seen state) *found {
	f := &found{chains: map[ref][]string{}, lines: map[ref]map[string]int{}, order: map[ref][]string{}}
	for t, chains := range seen {
		for name, c := range chains {
			if kubechain.Proxy(name) {
				f.chains[ref{t, name}] = c.Rules
			}
		}
	}
	for _, c := range d.shared(d.host) {
		at := ref{c.table, c.name}
		rules, ok := f.chains[at]
		if !ok {
			continue
		}
		f.order[at], f.lines[at] = rules, make(map[string]int, len(rules))
		for _, rule := range rules {
			f.lines[at][rule]++
		}
		delete(f.chains, at)
	}
	return f
}

// own plans a chain that is ours alone.
func (d *diff) own(e *edit, c chain, found *found) {
	at := ref{c.table, c.name}
	d.totals[tableKey{d.ip, c.table}] += len(c.rules)
	had, ok := found.chains[at]
	delete(found.chains, at)
	if ok && slices.EqualFunc(had, c.rules, c.alike) {
		d.kept += len(had)
		return
	}
	e.chains = append(e.chains, c)
}

// tailed plans a shared chain, and the rules that come last there.
func (d *diff) tailed(c chain, found *found) {
	at := ref{c.table, c.name}
	d.totals[tableKey{d.ip, c.table}] += len(c.rules)
	order, ok := found.order[at]
	if !ok {
		d.plan.first.chains = append(d.plan.first.chains, c)
		return
	}
	tail := canonical(c.rules)
	right := endsWith(order, tail)
	for _, rule := range tail {
		n := found.lines[at][rule]
		right = right && n == 1
		delete(found.lines[at], rule)
	}
	if right {
		d.kept += len(c.rules)
		return
	}
	for _, rule := range order {
		if slices.Contains(tail, rule) {
			d.plan.first.ordered = append(d.plan.first.ordered, command{"-D", line{c.table, c.name, rule}})
		}
	}
	for _, rule := range c.rules {
		d.plan.first.ordered = append(d.plan.first.ordered, command{"-A", line{c.table, c.name, rule}})
	}
}

func canonical(rules []string) []string {
	list := make([]string, 0, len(rules))
	for _, rule := range rules {
		list = append(list, iptables.Canonical(rule))
	}
	return list
}

func endsWith(list, tail []string) bool {
	return len(list) >= len(tail) && slices.Equal(list[len(list)-len(tail):], tail)
}

// enter plans a Service, or a part of one.
func (d *diff) enter(name cluster.Name, r rules, found *found) {
	e := edit{service: name}
	for _, c := range r.chains {
		d.own(&e, c, found)
	}
	for _, l := range r.lines {
		d.totals[tableKey{d.ip, l.table}]++
		if !found.take(l) {
			e.add = append(e.add, l)
			continue
		}
		d.kept++
	}
	d.reorder(&e, r.lines)
	d.plan.enter(e, d.Plane.kernel.Room())
}

// take takes a rule of a shared chain out of what was found; false: it is not
// there.
func (f *found) take(l line) bool {
	had := f.lines[ref{l.table, l.chain}]
	if len(had) == 0 {
		return false
	}
	rule := l.rule
	if had[rule] == 0 {
		rule = iptables.Canonical(rule)
	}
	if had[rule] == 0 {
		return false
	}
	had[rule]--
	return true
}

// reorder writes all rules of a Service in nat KUBE-NODEPORTS anew if one of them
// is missing: there what counts connections to loopback addresses comes before what
// takes them all.
func (d *diff) reorder(e *edit, lines []line) {
	inOrder := func(l line) bool { return l.table == nat && l.chain == nodePorts }
	if !slices.ContainsFunc(e.add, inOrder) {
		return
	}
	added := make(map[line]bool, len(e.add))
	for _, l := range e.add {
		added[l] = true
	}
	for _, l := range lines {
		if inOrder(l) && !added[l] {
			e.ordered = append(e.ordered, command{"-D", l})
			d.kept--
		}
	}
	e.add = slices.DeleteFunc(e.add, inOrder)
	for _, l := range lines {
		if inOrder(l) {
			e.add = append(e.add, l)
		}
	}
}

// leftovers plans the end of what is ours and nobody wants.
func (d *diff) leftovers(seen state, found *found) {
	for _, c := range d.shared(d.host) {
		had := found.lines[ref{c.table, c.name}]
		for _, rule := range sortedNames(had) {
			for range had[rule] {
				d.plan.last.del = append(d.plan.last.del, line{c.table, c.name, rule})
			}
		}
	}
	led := ledTo(seen)
	last := &d.plan.last
	for at, rules := range found.chains {
		switch {
		case !led[at]:
			last.gone = append(last.gone, at)
		case len(rules) > 0: // it has to stay, but leads nowhere
			last.chains = append(last.chains, chain{table: at.table, name: at.name})
		}
	}
	slices.SortFunc(last.gone, ref.compare)
	slices.SortFunc(last.chains, func(a, b chain) int { return ref{a.table, a.name}.compare(ref{b.table, b.name}) })
}

func (r ref) compare(o ref) int {
	return cmp.Or(cmp.Compare(r.table, o.table), cmp.Compare(r.name, o.name))
}

// ledTo returns the chains that chains of others lead to.
func ledTo(seen state) map[ref]bool {
	led := map[ref]bool{}
	for t, chains := range seen {
		for name, c := range chains {
			if kubechain.Proxy(name) {
				continue
			}
			mine := slices.Contains(builtin(t), name)
			for _, rule := range c.Rules {
				if to := iptables.Target(rule); !mine || !leads(to) {
					led[ref{t, to}] = true
				}
			}
		}
	}
	return led
}

// leads reports whether a rule of one of the kernel's own chains with this target
// is a proxy's: KUBE-MARK-MASQ is for others to use as well.
func leads(target string) bool { return kubechain.Proxy(target) && target != markMasq }

// lead plans the jumps of a chain of the kernel's. They are right if each is
// there once and in order, and no rule of others that would end a packet's way
// has come before them.
func (d *diff) lead(t table, name string, rules []string) {
	var want, have []string
	for _, j := range jumps() {
		if j.table == t && j.chain == name {
			want = append(want, iptables.Canonical(j.rule))
		}
	}
	d.totals[tableKey{d.ip, t}] += len(want)
	for _, rule := range rules {
		if leads(iptables.Target(rule)) {
			have = append(have, rule)
		}
	}
	key := builtinKey{tableKey{d.ip, t}, name}
	if slices.Equal(have, want) && !d.overtaken(key, rules, have) {
		d.behind[key] = endsBehind(rules, have)
		d.kept += len(want)
		return
	}
	e := &d.plan.first
	for _, rule := range have {
		e.ordered = append(e.ordered, command{"-D", line{t, name, rule}})
	}
	for _, rule := range slices.Backward(want) {
		e.ordered = append(e.ordered, command{"-I", line{t, name, rule}})
	}
	d.behind[key] = slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return !ends(r) })
}

// ends reports whether a rule ends the way of packets it matches.
func ends(rule string) bool {
	return slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT"}, iptables.Target(rule))
}

// overtaken reports whether a rule that ends packets' way has come before our
// last jump: one that was behind it, one for all packets, or one between our
// jumps, which have been put in front together.
func (d *diff) overtaken(key builtinKey, rules, jumps []string) bool {
	if len(jumps) == 0 {
		return false
	}
	first, last := slices.Index(rules, jumps[0]), slices.Index(rules, jumps[len(jumps)-1])
	return slices.ContainsFunc(rules[first:last], ends) || slices.ContainsFunc(rules[:first], func(rule string) bool {
		return ends(rule) && (strings.HasPrefix(rule, "-j ") || slices.Contains(d.behind[key], rule))
	})
}

// endsBehind returns the rules behind our jumps that end packets' way.
func endsBehind(rules, jumps []string) []string {
	last := 0
	if len(jumps) > 0 {
		last = slices.Index(rules, jumps[len(jumps)-1])
	}
	var list []string
	for _, rule := range rules[last:] {
		if ends(rule) {
			list = append(list, rule)
		}
	}
	return list
}

// protect plans the guards that are missing. Their chain is not only ours: if it
// is there, what is in it stays.
func (d *diff) protect(seen state) {
	if _, there := seen[filter][localnet]; !there {
		d.plan.first.chains = append(d.plan.first.chains, chain{table: filter, name: localnet})
	}
	d.guarded[d.ip] = nil
	for _, l := range everyGuard() {
		if slices.Contains(seen[l.table][l.chain].Rules, iptables.Canonical(l.rule)) {
			d.guarded[d.ip] = append(d.guarded[d.ip], l)
		}
	}
	d.guard()
}

// nothing plans the end of all that is ours, and says what that is.
func (d *diff) nothing(seen state) []string {
	var removed []string
	for _, t := range everyTable() {
		if what := d.clear(t, seen[t]); what != "" {
			removed = append(removed, fmt.Sprintf("%s in %s %s", what, d.program, t))
		}
	}
	return removed
}

// clear plans the end of what is ours in a table. Network plugins have packets
// masqueraded by a jump to KUBE-MARK-MASQ, as kube-proxy's documents advise; where
// they do, that goes on working.
func (d *diff) clear(t table, chains iptables.Chains) string {
	lent := lentOut(chains)
	goes := func(name string) bool { return kubechain.Proxy(name) && !slices.Contains(lent, name) }
	gone, rules := 0, 0
	for _, name := range sortedNames(chains) {
		if goes(name) {
			gone++
			d.plan.last.gone = append(d.plan.last.gone, ref{t, name})
			continue
		}
		for _, rule := range chains[name].Rules {
			if goes(iptables.Target(rule)) {
				rules++
				d.plan.first.ordered = append(d.plan.first.ordered, command{"-D", line{t, name, rule}})
			}
		}
	}
	if gone+rules == 0 {
		return ""
	}
	return text.Count(gone, "chain") + " and " + text.Count(rules, "rule")
}

func lentOut(chains iptables.Chains) []string {
	for name, c := range chains {
		if !kubechain.Proxy(name) && slices.ContainsFunc(c.Rules, func(r string) bool { return iptables.Target(r) == markMasq }) {
			return []string{markMasq, postrouting}
		}
	}
	return nil
}
