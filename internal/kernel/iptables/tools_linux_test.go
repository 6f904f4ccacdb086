package iptables

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// Rules that are written in the spelling of Canonical are read as they were written, and
// writing the read ones changes nothing.
func TestWrittenRulesAreReadBack(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		for family, file := range map[Family]string{IPv4: "rules.ipv4", IPv6: "rules.ipv6"} {
			b, err := os.ReadFile("testdata/" + file)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				h.restore(family, string(b))
				for table, want := range asked(string(b)) {
					compare(t, h.read(family, table), want)
				}
				b = []byte(strings.ReplaceAll(inputOf(h, family), "-I PREROUTING", "-A PREROUTING"))
			}
		}
	})
}

// asked returns what input without deletions says.
func asked(input string) map[string]Chains {
	all := map[string]Chains{}
	_ = commands(input, func(c command) error {
		switch c.verb {
		case "*":
			all[c.table] = Chains{}
		case ":":
			all[c.table][c.chain] = Chain{Policy: c.rest}
		case "-A":
			chain := all[c.table][c.chain]
			chain.Rules = append(chain.Rules, Canonical(c.rest))
			all[c.table][c.chain] = chain
		}
		return nil
	})
	return all
}

// inputOf writes all chains that are not the kernel's.
func inputOf(h *host, family Family) string {
	var b strings.Builder
	for _, table := range []string{"nat", "filter"} {
		chains := h.read(family, table)
		b.WriteString("*" + table + "\n")
		for name, c := range chains {
			if c.Policy == "-" {
				b.WriteString(":" + name + " - [0:0]\n")
			}
		}
		for name, c := range chains {
			for _, rule := range c.Rules {
				if c.Policy == "-" {
					b.WriteString("-A " + name + " " + rule + "\n")
				}
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// compare compares chains that are not the kernel's.
func compare(t *testing.T, got, want Chains) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name].Policy != "-" {
			continue
		}
		if got[name].Policy != "-" {
			t.Errorf("chain %s: policy %q", name, got[name].Policy)
		}
		if !slices.Equal(got[name].Rules, want[name].Rules) {
			t.Errorf("chain %s has\n%s\nwant\n%s", name, strings.Join(got[name].Rules, "\n"), strings.Join(want[name].Rules, "\n"))
		}
	}
}

// A table that nobody uses is empty, and stays unmade.
func TestReadingMakesNoTable(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		for _, family := range families() {
			if got := h.read(family, "mangle"); len(got) != 0 {
				t.Errorf("read %v", got)
			}
			there, err := h.tools.kernel.Exists(t.Context(), TableID{Variant: variant, Family: family, Name: "mangle"})
			if err != nil || there {
				t.Errorf("table is there: %t, %v", there, err)
			}
		}
	})
}
