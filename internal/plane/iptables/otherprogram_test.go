package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// otherProgram is another program that changes a table.
type otherProgram struct {
	*planetest.World
	family family
	table  table
	chains iptables.Chains
	input  []string
}

// host is an address of somebody else, in the words of the family.
func (m *otherProgram) host(i int) string {
	if m.family.ip == route.IPv4 {
		return fmt.Sprintf("192.0.2.%d/32", i)
	}
	return fmt.Sprintf("2001:db8:2::%d/128", i)
}

func (m *otherProgram) say(format string, args ...any) {
	m.input = append(m.input, fmt.Sprintf(format, args...))
}

// editTables does what another program might do. What the kernel refuses does not
// happen.
func (s *subject) editTables(w *planetest.World) error {
	for range 1 + w.IntN(3) {
		f := planetest.Pick(w.Rand, bothFamilies()...)
		t := planetest.Pick(w.Rand, nat, nat, filter, mangle)
		chains, err := s.kernel.Read(context.Background(), iptables.Table{Family: f.kernel, Name: t.String()})
		if err != nil {
			return err
		}
		m := &otherProgram{World: w, family: *f, table: t, chains: chains}
		m.think()
		input := "*" + t.String() + "\n" + strings.Join(m.input, "\n") + "\nCOMMIT\n"
		_ = s.kernel.Restore(context.Background(), f.kernel, []byte(input))
	}
	if s.audit != nil {
		s.audit.skip = true
	}
	foreign, err := s.others()
	s.foreign = foreign
	return err
}

func (m *otherProgram) think() {
	var mine []string
	for _, name := range slices.Sorted(maps.Keys(m.chains)) {
		if kubechain.Proxy(name) {
			mine = append(mine, name)
		}
	}
	if len(mine) == 0 || m.table == mangle {
		m.leave()
		return
	}
	name := planetest.Pick(m.Rand, mine...)
	rules := m.chains[name].Rules
	switch m.IntN(11) {
	case 0: // a rule vanishes
		if len(rules) > 0 {
			m.say("-D %s %d", name, 1+m.IntN(len(rules)))
		}
	case 1: // all rules do
		m.say("-F %s", name)
	case 2: // rules of others in the middle of ours, and the same twice
		m.say("-I %s %d -s %s -j %s", name, 1+m.IntN(1+len(rules)), m.host(1), planetest.Pick(m.Rand, "RETURN", "ACCEPT"))
		if len(rules) > 0 {
			m.say("-A %s %s", name, planetest.Pick(m.Rand, rules...))
		}
	case 3: // the first comes last, perhaps behind what must be last
		if len(rules) > 0 {
			m.say("-D %s 1", name)
			m.say("-A %s %s", name, rules[0])
		}
	case 4: // the chain is deleted, and what leads there
		m.drop(name)
	case 5:
		m.dropAll(mine)
	case 6, 7:
		m.jumps()
	case 8:
		m.leave()
	default:
		m.neighbour(name)
	}
}

// drop deletes a chain.
func (m *otherProgram) drop(name string) {
	for _, other := range slices.Sorted(maps.Keys(m.chains)) {
		for i, rule := range slices.Backward(m.chains[other].Rules) {
			if iptables.Target(rule) == name && other != name {
				m.say("-D %s %d", other, i+1)
			}
		}
	}
	m.say("-F %s", name)
	m.say("-X %s", name)
}

// dropAll does what the restart of a firewall does.
func (m *otherProgram) dropAll(mine []string) {
	for _, other := range slices.Sorted(maps.Keys(m.chains)) {
		for i, rule := range slices.Backward(m.chains[other].Rules) {
			if !kubechain.Proxy(other) && kubechain.Proxy(iptables.Target(rule)) {
				m.say("-D %s %d", other, i+1)
			}
		}
	}
	for _, name := range mine {
		m.say("-F %s", name)
	}
	for _, name := range mine {
		m.say("-X %s", name)
	}
}

// jumps takes jumps out, moves them, and puts rules of others around them.
func (m *otherProgram) jumps() {
	chain := planetest.Pick(m.Rand, builtin(m.table)...)
	rules := m.chains[chain].Rules
	if len(rules) > 0 {
		i := m.IntN(len(rules))
		m.say("-D %s %d", chain, i+1)
		if m.Chance(2) {
			m.say("-A %s %s", chain, rules[i])
		}
	}
	foreign := "-s " + m.host(7) + " -j " + planetest.Pick(m.Rand, "ACCEPT", "RETURN")
	if !slices.Contains(rules, foreign) {
		m.say("-I %s %d %s", chain, 1+m.IntN(max(1, len(rules))), foreign)
	}
}

// leave makes what kube-proxy leaves: of Services that are gone, of other modes
// and of versions long ago.
func (m *otherProgram) leave() {
	m.say(":KUBE-PROXY-CANARY - [0:0]")
	if m.table != nat {
		return
	}
	for _, name := range []string{"KUBE-SVC-STRAYAAAAAAAAAAA", "KUBE-SEP-STRAYBBBBBBBBBBB", "KUBE-XLB-STRAYCCCCCCCCCCC", "KUBE-PORTALS-HOST"} {
		m.say(":%s - [0:0]", name)
	}
	m.say("-A KUBE-XLB-STRAYCCCCCCCCCCC -j KUBE-SVC-STRAYAAAAAAAAAAA")
	m.say("-A KUBE-SVC-STRAYAAAAAAAAAAA -j KUBE-SEP-STRAYBBBBBBBBBBB")
	m.say("-A OUTPUT -j KUBE-PORTALS-HOST")
}

// neighbour makes chains of others that lead to each other and to ours.
func (m *otherProgram) neighbour(name string) {
	if m.chains["cali-a"].Policy == "" {
		m.say(":cali-a - [0:0]")
		m.say(":cali-b - [0:0]")
	}
	chain := planetest.Pick(m.Rand, builtin(m.table)...)
	if jump := "-j cali-a"; !slices.Contains(m.chains[chain].Rules, jump) {
		m.say("-I %s %s", chain, jump)
	}
	if len(m.chains["cali-a"].Rules) > 5 {
		m.say("-F cali-a")
	}
	m.say("-A cali-a -s %s -j cali-b", m.host(9))
	if m.table != nat {
		return
	}
	m.say("-A cali-a -s %s -j %s", m.host(10), markMasq)
	if owned(name) {
		m.say("-A cali-a -s %s %s %s", m.host(11), planetest.Pick(m.Rand, "-j", "-g"), name)
	}
	if plugin := "-s " + m.host(12) + " -j " + markMasq; !slices.Contains(m.chains["POSTROUTING"].Rules, plugin) {
		m.say("-A POSTROUTING %s", plugin)
	}
}
