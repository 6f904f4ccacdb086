package iptables

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// Rules in the canonical spelling are read back unchanged, and writing them again changes nothing.
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
				for table, want := range Parse(string(b)) {
					compare(t, h.read(family, table), want)
				}
				b = []byte(strings.ReplaceAll(inputOf(h, family), "-I PREROUTING", "-A PREROUTING"))
			}
		}
	})
}

// inputOf returns input with all chains except the built-in ones.
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

// compare compares chains, except the built-in ones.
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
			t.Errorf("chain %s has\n%s\nwant\n%s", name, strings.Join(got[name].Rules, "\n"),
				strings.Join(want[name].Rules, "\n"))
		}
	}
}

// A read of a table that does not exist returns no chains, and does not create it.
func TestReadCreatesNoTable(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		for _, family := range families() {
			if got := h.read(family, "mangle"); len(got) != 0 {
				t.Errorf("read %v", got)
			}
			exists, err := h.tools.kernel.Exists(t.Context(), TableID{Variant: variant, Family: family, Name: "mangle"})
			if err != nil || exists {
				t.Errorf("the table exists: %t, %v", exists, err)
			}
		}
	})
}
