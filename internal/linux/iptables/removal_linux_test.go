package iptables_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// tableEditor is the common interface of the kernel and the fake.
type tableEditor interface {
	Outlines(context.Context, func(chain string) bool) ([]iptables.Outline, error)
	Remove(context.Context, ...iptables.Removal) error
}

// small is the initial table of the kernel and the fake.
const small = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:C - [0:0]
-A INPUT -m comment --comment first -j A
-A INPUT -m comment --comment twice
-A INPUT -m comment --comment between -j ACCEPT
-A INPUT -m comment --comment twice
-A OUTPUT -g B
-A A -j B
-A B -j C
-A B -j RETURN
-A C -j DROP
COMMIT
`

// everyKernel runs a test with each variant of the kernel, and with the fake, which must behave in the same way.
func everyKernel(t *testing.T, test func(*testing.T, tableEditor)) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			h := newHost(t)
			h.run(small, program+"-restore")
			test(t, h.kernel())
		})
	}
	t.Run("fake", func(t *testing.T) {
		id := iptables.TableID{Variant: iptables.Legacy, Family: iptables.IPv4}
		test(t, iptablestest.NewKernel(parse(small, id)...))
	})
}

func first(t *testing.T, d tableEditor) iptables.Outline {
	t.Helper()
	tables, err := d.Outlines(t.Context(), iptables.AllRules)
	if err != nil {
		t.Fatal(err)
	}
	return tables[0]
}

// diff returns the difference of two texts.
func diff(want, got string) string { return gocmp.Diff(want, got) }

// show prints a table, sorted by chain.
func show(table iptables.Outline) string {
	chains := slices.Clone(table.Chains)
	slices.SortFunc(chains, func(a, b iptables.ChainOutline) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for _, chain := range chains {
		fmt.Fprintf(&b, "%s:", chain.Name)
		for _, r := range chain.Rules {
			fmt.Fprintf(&b, " %s", cmp.Or(r.Target, "-"))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// removal returns the removal of a chain, with the rules of other chains that jump to it.
func removal(o iptables.Outline, chain string, from ...string) iptables.Removal {
	r := iptables.Removal{Table: o.TableID, Handle: o.Handle, Chains: []string{chain}}
	for _, c := range o.Chains {
		for _, rule := range c.Rules {
			if rule.Target == chain && slices.Contains(from, c.Name) {
				r.Rules = append(r.Rules, iptables.ChainRule{Chain: c.Name, RuleOutline: rule})
			}
		}
	}
	return r
}

// removeChain removes a chain of the table small, with the rules of other chains that jump
// to it, and verifies the rest.
func removeChain(t *testing.T, chain string, from []string, want string) {
	t.Helper()
	everyKernel(t, func(t *testing.T, d tableEditor) {
		if err := d.Remove(t.Context(), removal(first(t, d), chain, from...)); err != nil {
			t.Fatal(err)
		}
		if difference := diff(want, show(first(t, d))); difference != "" {
			t.Errorf("table (-want +got):\n%s", difference)
		}
	})
}

func TestAChainIsRemovedWithItsRules(t *testing.T) {
	removeChain(t, "A", []string{"INPUT"}, "B: C RETURN\nC: DROP\nFORWARD:\nINPUT: - ACCEPT -\nOUTPUT: B\n")
}

// The first rule of a chain is removed, and other rules still jump to that chain.
func TestJumpsToAChainThatShrinks(t *testing.T) {
	removeChain(t, "C", []string{"B"}, "A: B\nB: RETURN\nFORWARD:\nINPUT: A - ACCEPT -\nOUTPUT: B\n")
}

// Rules of several chains jump to the removed one, by jump and by goto.
func TestAllRulesThatLeadToAChainAreRemoved(t *testing.T) {
	removeChain(t, "B", []string{"A", "OUTPUT"}, "A:\nC: DROP\nFORWARD:\nINPUT: A - ACCEPT -\nOUTPUT:\n")
}

func TestRemovalOfUsedChainsIsRefused(t *testing.T) {
	everyKernel(t, func(t *testing.T, d tableEditor) {
		table := first(t, d)
		before := show(table)
		if err := d.Remove(t.Context(), removal(table, "A")); !errors.Is(err, iptables.ErrInUse) {
			t.Errorf("remove a chain that is in use: got %v, want %v", err, iptables.ErrInUse)
		}
		if after := show(first(t, d)); after != before {
			t.Errorf("table (-before +after):\n%s", diff(before, after))
		}
	})
}

// The effect of an error depends on the variant: each legacy table is changed on its own, all nft tables together.
func TestAFailureOfOneTable(t *testing.T) {
	ids := []iptables.TableID{
		{Variant: iptables.NFT, Family: iptables.IPv4, Name: "filter"},
		{Variant: iptables.NFT, Family: iptables.IPv6, Name: "filter"},
		{Variant: iptables.Legacy, Family: iptables.IPv4, Name: "filter"},
		{Variant: iptables.Legacy, Family: iptables.IPv6, Name: "filter"},
	}
	h := newHost(t)
	var tables []iptables.Outline
	for _, program := range programs {
		h.run(small, program+"-restore")
	}
	for _, id := range ids {
		tables = append(tables, parse(small, id)...)
	}
	for name, d := range map[string]tableEditor{"kernel": h.kernel(), "fake": iptablestest.NewKernel(tables...)} {
		before, err := d.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		var all []iptables.Removal
		for _, table := range before {
			from := map[iptables.Family]string{iptables.IPv6: "INPUT"} // in the other family a rule still jumps to it
			all = append(all, removal(table, "A", from[table.Family]))
		}
		if err := d.Remove(t.Context(), all...); !errors.Is(err, iptables.ErrInUse) {
			t.Errorf("%s: got %v, want %v", name, err, iptables.ErrInUse)
		}
		after, err := d.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		for i := range after {
			changed := show(after[i]) != show(before[i])
			if want := after[i].Variant == iptables.Legacy && after[i].Family == iptables.IPv6; changed != want {
				t.Errorf("%s: %s changed: %t, want %t", name, after[i].TableID, changed, want)
			}
		}
	}
}

func TestTheFakeReturnsErrors(t *testing.T) {
	broken := errors.New("broken")
	f := iptablestest.NewKernel(parse(small, iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv6})...)
	before := f.String()
	f.Fail = func(string) error { return broken }
	if _, err := f.Outlines(t.Context(), iptables.AllRules); !errors.Is(err, broken) {
		t.Errorf("tables: got %v, want %v", err, broken)
	}
	id := iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv6, Name: "filter"}
	if err := f.Remove(t.Context(), iptables.Removal{Table: id, Chains: []string{"A"}}); !errors.Is(err, broken) {
		t.Errorf("remove: got %v, want %v", err, broken)
	}
	const want = `# ip6tables-nft filter
:INPUT
:FORWARD
:OUTPUT
:A
:B
:C
-A INPUT -j A
-A INPUT
-A INPUT -j ACCEPT
-A INPUT
-A OUTPUT -j B
-A A -j B
-A B -j C
-A B -j RETURN
-A C -j DROP
`
	if before != want || f.String() != want {
		t.Errorf("the fake is (-want +got):\n%s", diff(want, f.String()))
	}
}
