package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// otherProgram is another program that changes a table.
type otherProgram struct {
	*planetest.World
	family family
	table  table
	chains iptables.Chains
	input  []string
}

// host returns an address outside of the cluster, of the family, as a prefix.
func (m *otherProgram) host(i int) string {
	if m.family.ip == route.IPv4 {
		return fmt.Sprintf("192.0.2.%d/32", i)
	}
	return fmt.Sprintf("2001:db8:2::%d/128", i)
}

func (m *otherProgram) add(format string, args ...any) {
	m.input = append(m.input, fmt.Sprintf(format, args...))
}

// editTables makes edits that another program might make. It ignores errors of the kernel.
func (s *subject) editTables(w *planetest.World) error {
	for range 1 + w.IntN(3) {
		f := planetest.Pick(w.Rand, bothFamilies()...)
		t := planetest.Pick(w.Rand, nat, nat, filter, mangle)
		chains, err := s.kernel.Read(context.Background(), iptables.Table{Family: f.kernel, Name: t.String()})
		if err != nil {
			return err
		}
		m := &otherProgram{World: w, family: *f, table: t, chains: chains}
		m.chooseEdit()
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

func (m *otherProgram) chooseEdit() {
	var ours []string
	for _, name := range slices.Sorted(maps.Keys(m.chains)) {
		if kubechain.Proxy(name) {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 || m.table == mangle {
		m.addLeftovers()
		return
	}
	name := planetest.Pick(m.Rand, ours...)
	rules := m.chains[name].Rules
	switch m.IntN(11) {
	case 0: // delete a rule
		if len(rules) > 0 {
			m.add("-D %s %d", name, 1+m.IntN(len(rules)))
		}
	case 1: // delete all rules
		m.add("-F %s", name)
	case 2: // insert a foreign rule among ours, and duplicate one of ours
		m.add("-I %s %d -s %s -j %s", name, 1+m.IntN(1+len(rules)), m.host(1), planetest.Pick(m.Rand, "RETURN", "ACCEPT"))
		if len(rules) > 0 {
			m.add("-A %s %s", name, planetest.Pick(m.Rand, rules...))
		}
	case 3: // move the first rule to the end, perhaps behind the rule that must be last
		if len(rules) > 0 {
			m.add("-D %s 1", name)
			m.add("-A %s %s", name, rules[0])
		}
	case 4: // delete the chain and the jumps to it
		m.drop(name)
	case 5:
		m.dropAll(ours)
	case 6, 7:
		m.editJumps()
	case 8:
		m.addLeftovers()
	default:
		m.addForeignChains(name)
	}
}

// drop deletes a chain.
func (m *otherProgram) drop(name string) {
	for _, other := range slices.Sorted(maps.Keys(m.chains)) {
		for i, rule := range slices.Backward(m.chains[other].Rules) {
			if iptables.Target(rule) == name && other != name {
				m.add("-D %s %d", other, i+1)
			}
		}
	}
	m.add("-F %s", name)
	m.add("-X %s", name)
}

// dropAll deletes all our chains, like the restart of a firewall.
func (m *otherProgram) dropAll(ours []string) {
	for _, other := range slices.Sorted(maps.Keys(m.chains)) {
		for i, rule := range slices.Backward(m.chains[other].Rules) {
			if !kubechain.Proxy(other) && kubechain.Proxy(iptables.Target(rule)) {
				m.add("-D %s %d", other, i+1)
			}
		}
	}
	for _, name := range ours {
		m.add("-F %s", name)
	}
	for _, name := range ours {
		m.add("-X %s", name)
	}
}

// editJumps deletes or moves a jump, and inserts a foreign rule near the jumps.
func (m *otherProgram) editJumps() {
	chain := planetest.Pick(m.Rand, builtin(m.table)...)
	rules := m.chains[chain].Rules
	if len(rules) > 0 {
		i := m.IntN(len(rules))
		m.add("-D %s %d", chain, i+1)
		if m.Chance(2) {
			m.add("-A %s %s", chain, rules[i])
		}
	}
	foreign := "-s " + m.host(7) + " -j " + planetest.Pick(m.Rand, "ACCEPT", "RETURN")
	if !slices.Contains(rules, foreign) {
		m.add("-I %s %d %s", chain, 1+m.IntN(max(1, len(rules))), foreign)
	}
}

// addLeftovers adds chains that kube-proxy leaves behind: of deleted Services, of other modes and of old versions.
func (m *otherProgram) addLeftovers() {
	m.add(":KUBE-PROXY-CANARY - [0:0]")
	if m.table != nat {
		return
	}
	for _, name := range []string{
		"KUBE-SVC-STRAYAAAAAAAAAAA", "KUBE-SEP-STRAYBBBBBBBBBBB", "KUBE-XLB-STRAYCCCCCCCCCCC", "KUBE-PORTALS-HOST",
	} {
		m.add(":%s - [0:0]", name)
	}
	m.add("-A KUBE-XLB-STRAYCCCCCCCCCCC -j KUBE-SVC-STRAYAAAAAAAAAAA")
	m.add("-A KUBE-SVC-STRAYAAAAAAAAAAA -j KUBE-SEP-STRAYBBBBBBBBBBB")
	m.add("-A OUTPUT -j KUBE-PORTALS-HOST")
}

// addForeignChains adds chains of another program that jump to each other and to ours.
func (m *otherProgram) addForeignChains(name string) {
	if m.chains["cali-a"].Policy == "" {
		m.add(":cali-a - [0:0]")
		m.add(":cali-b - [0:0]")
	}
	chain := planetest.Pick(m.Rand, builtin(m.table)...)
	if jump := "-j cali-a"; !slices.Contains(m.chains[chain].Rules, jump) {
		m.add("-I %s %s", chain, jump)
	}
	if len(m.chains["cali-a"].Rules) > 5 {
		m.add("-F cali-a")
	}
	m.add("-A cali-a -s %s -j cali-b", m.host(9))
	if m.table != nat {
		return
	}
	m.add("-A cali-a -s %s -j %s", m.host(10), markMasq)
	if owned(name) {
		m.add("-A cali-a -s %s %s %s", m.host(11), planetest.Pick(m.Rand, "-j", "-g"), name)
	}
	if plugin := "-s " + m.host(12) + " -j " + markMasq; !slices.Contains(m.chains["POSTROUTING"].Rules, plugin) {
		m.add("-A POSTROUTING %s", plugin)
	}
}
