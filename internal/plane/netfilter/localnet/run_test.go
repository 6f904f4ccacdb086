package localnet

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// What a program changes in the guard is put back, and reported with its name.
func TestDamageIsRestored(t *testing.T) {
	for name, damage := range map[string]func(*nft.Tx){
		"other rules": func(tx *nft.Tx) {
			c := guardChain()
			c.Rules = append([]nft.Rule{nft.NewRule(nft.ToLoopback(nft.IP4))}, c.Rules...)
			tx.SetChain(Table(), c)
		},
		"no rules": func(tx *nft.Tx) { tx.FlushChain(Table(), guardChain().Name) },
		"no chain": func(tx *nft.Tx) { tx.DeleteChain(Table(), guardChain().Name) },
		"another hook": func(tx *nft.Tx) {
			c := guardChain()
			c.Hook.Point = nft.Input
			tx.DeleteTable(Table())
			tx.AddTable(Table())
			tx.SetChain(Table(), c)
		},
		"no table": func(tx *nft.Tx) { tx.DeleteTable(Table()) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			p := m.start()
			p.localhost()
			tx := &nft.Tx{}
			damage(tx)
			if err := m.tables.Commit(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if m.guarded() {
				t.Fatal("the test does no damage")
			}
			for range 2 { // the second finds nothing to do
				p.edit(nft.Edit{By: "nft"})
				p.follow()
			}
			m.want("1", "marked guard")
			want := []string{
				"another program (nft) changed table ip sluice-localnet, which keeps neighbours out of 127.0.0.0/8; " +
					"it was restored",
			}
			if !slices.Equal(p.reports, want) {
				t.Errorf("reports %q, want %q", p.reports, want)
			}
		})
	}
}

func TestFailuresAreRetried(t *testing.T) {
	m := newMachine(t)
	m.left = 1 // the guard, but not the parameter
	p := m.start()
	p.localhost()
	if _, err := p.restore(t.Context()); err == nil {
		t.Error("a failure counts as success")
	}
	if len(p.reports) != 1 || !strings.Contains(p.reports[0], "NodePorts on 127.0.0.1 do not work: killed") {
		t.Errorf("reports %q", p.reports)
	}
	m.want("0", "marked guard")
	m.left = -1
	if _, err := p.restore(t.Context()); err != nil {
		t.Errorf("success counts as failure: %v", err)
	}
	m.want("1", "marked guard")
}

// A kernel without nf_tables is not made to route 127.0.0.0/8.
func TestWithoutNfTablesNothingIsRouted(t *testing.T) {
	for _, tt := range []struct{ value, report string }{
		{"0", "NodePorts on 127.0.0.1 do not work, as the guard"},
		{"1", "neighbours may reach what listens on 127.0.0.1"},
	} {
		m := newMachine(t)
		m.values[key], m.unreadable = tt.value, errors.New("no such kernel")
		p := m.start()
		p.localhost()
		if m.values[key] != tt.value || len(p.reports) == 0 || !strings.Contains(p.reports[0], tt.report) ||
			!strings.Contains(p.reports[0], "CONFIG_NF_TABLES") {
			t.Errorf("route_localnet is %s, reports %q", m.values[key], p.reports)
		}
	}
	m := newMachine(t)
	m.unreadable = errors.New("no such kernel")
	p := m.start()
	p.outside()
	if lines, err := p.Remove(t.Context()); err != nil || lines != nil || p.reports != nil {
		t.Errorf("where nothing is routed: %q, %v, %q", lines, err, p.reports)
	}
}

func TestAParameterThatStaysOnIsReportedOnce(t *testing.T) {
	m := newMachine(t)
	m.values[key] = "1"
	p := m.start()
	p.outside()
	p.outside()
	if want := []string{errLeftOn.Error()}; !slices.Equal(p.reports, want) {
		t.Errorf("reports %q, want %q", p.reports, want)
	}
}
