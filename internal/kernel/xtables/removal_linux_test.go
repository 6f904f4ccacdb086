package xtables_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// door is what the kernel and the fake have in common.
type door interface {
	Tables(context.Context) ([]xtables.Table, error)
	Remove(context.Context, ...xtables.Removal) error
}

// small is a table that the kernel and the fake begin with.
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

// everyone runs a test with each variant of the kernel's, and with the fake:
// they must agree.
func everyone(t *testing.T, test func(*testing.T, door)) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			h := newHost(t)
			h.run(small, program+"-restore")
			test(t, h.kernel())
		})
	}
	t.Run("fake", func(t *testing.T) {
		id := xtables.TableID{Variant: xtables.Legacy, Family: xtables.IPv4}
		test(t, xtables.NewFake(parse(small, id)...))
	})
}

func first(t *testing.T, d door) xtables.Table {
	t.Helper()
	tables, err := d.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tables[0]
}

// show prints a table, chains by name.
func show(table xtables.Table) string {
	chains := slices.Clone(table.Chains)
	slices.SortFunc(chains, func(a, b xtables.Chain) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for _, chain := range chains {
		fmt.Fprintf(&b, "%s:", chain.Name)
		for _, r := range chain.Rules {
			fmt.Fprintf(&b, " %s>%s", r.Comment, r.Target)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// rules finds rules by chain and what they are.
func rules(table xtables.Table, chain string, is func(xtables.Rule) bool) []xtables.ChainRule {
	var found []xtables.ChainRule
	for _, c := range table.Chains {
		for _, r := range c.Rules {
			if c.Name == chain && is(r) {
				found = append(found, xtables.ChainRule{Chain: c.Name, Rule: r})
			}
		}
	}
	return found
}

func leadsTo(chain string) func(xtables.Rule) bool {
	return func(r xtables.Rule) bool { return r.Jump && r.Target == chain }
}

func TestAChainGoesWithItsRules(t *testing.T) {
	everyone(t, func(t *testing.T, d door) {
		table := first(t, d)
		r := xtables.Removal{Table: table.TableID, Chains: []string{"A"}, Rules: rules(table, "INPUT", leadsTo("A"))}
		for range 2 { // the second time it is gone already
			if err := d.Remove(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			const want = "B: >C >RETURN\nC: >DROP\nFORWARD:\nINPUT: twice> between>ACCEPT twice>\nOUTPUT: >B\n"
			if diff := cmp.Diff(want, show(first(t, d))); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		}
	})
}

// The first rule of a chain goes, and others still lead to that chain.
func TestJumpsFindTheirChainsAgain(t *testing.T) {
	everyone(t, func(t *testing.T, d door) {
		table := first(t, d)
		r := xtables.Removal{Table: table.TableID, Chains: []string{"C"}, Rules: rules(table, "B", leadsTo("C"))}
		if err := d.Remove(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		const want = "A: >B\nB: >RETURN\nFORWARD:\nINPUT: first>A twice> between>ACCEPT twice>\nOUTPUT: >B\n"
		if diff := cmp.Diff(want, show(first(t, d))); diff != "" {
			t.Errorf("table (-want +got):\n%s", diff)
		}
	})
}

// Of rules that say the same, as many go as are named.
func TestOneOfTwoEqualRulesGoes(t *testing.T) {
	everyone(t, func(t *testing.T, d door) {
		table := first(t, d)
		twice := rules(table, "INPUT", func(r xtables.Rule) bool { return r.Comment == "twice" })
		if len(twice) != 2 {
			t.Fatalf("found %d, want 2", len(twice))
		}
		for _, want := range []string{"INPUT: first>A between>ACCEPT twice>", "INPUT: first>A between>ACCEPT\n"} {
			if err := d.Remove(t.Context(), xtables.Removal{Table: table.TableID, Rules: twice[:1]}); err != nil {
				t.Fatal(err)
			}
			if got := show(first(t, d)); !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
			twice = twice[1:]
		}
	})
}

func TestRefusesWhatWouldBreakOthers(t *testing.T) {
	everyone(t, func(t *testing.T, d door) {
		table := first(t, d)
		before := show(table)
		err := d.Remove(t.Context(), xtables.Removal{Table: table.TableID, Chains: []string{"A", "B"}})
		if !errors.Is(err, xtables.ErrInUse) || !strings.Contains(err.Error(), "rule 1 of chain INPUT") {
			t.Errorf("remove chains that are in use: got %v, want %v, and where", err, xtables.ErrInUse)
		}
		err = d.Remove(t.Context(), xtables.Removal{Table: table.TableID, Chains: []string{"FORWARD"}})
		if err == nil || !strings.Contains(err.Error(), "FORWARD: it is built in") {
			t.Errorf("remove a built-in chain: got %v, want a refusal", err)
		}
		if after := show(first(t, d)); after != before {
			t.Errorf("table (-before +after):\n%s", cmp.Diff(before, after))
		}
	})
}

// What a failure means is the variant's: a legacy table for itself, nft tables
// all together.
func TestAFailureOfOneTable(t *testing.T) {
	ids := []xtables.TableID{
		{Variant: xtables.NFT, Family: xtables.IPv4, Name: "filter"},
		{Variant: xtables.NFT, Family: xtables.IPv6, Name: "filter"},
		{Variant: xtables.Legacy, Family: xtables.IPv4, Name: "filter"},
		{Variant: xtables.Legacy, Family: xtables.IPv6, Name: "filter"},
	}
	h := newHost(t)
	var tables []xtables.Table
	for _, program := range programs {
		h.run(small, program+"-restore")
	}
	for _, id := range ids {
		tables = append(tables, parse(small, id)...)
	}
	for name, d := range map[string]door{"kernel": h.kernel(), "fake": xtables.NewFake(tables...)} {
		before, err := d.Tables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all []xtables.Removal
		for _, table := range before {
			r := xtables.Removal{Table: table.TableID, Chains: []string{"A"}}
			if table.Family == xtables.IPv6 { // in the other family a rule still leads to it
				r.Rules = rules(table, "INPUT", leadsTo("A"))
			}
			all = append(all, r)
		}
		if err := d.Remove(t.Context(), all...); !errors.Is(err, xtables.ErrInUse) {
			t.Errorf("%s: got %v, want %v", name, err, xtables.ErrInUse)
		}
		after, err := d.Tables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range after {
			changed := show(after[i]) != show(before[i])
			if want := after[i].Variant == xtables.Legacy && after[i].Family == xtables.IPv6; changed != want {
				t.Errorf("%s: %s changed: %t, want %t", name, after[i].TableID, changed, want)
			}
		}
	}
}

func TestTheFakeFailsWhenToldTo(t *testing.T) {
	broken := errors.New("broken")
	f := xtables.NewFake(parse(small, xtables.TableID{Variant: xtables.NFT, Family: xtables.IPv6})...)
	before := f.String()
	f.Fail = func(string) error { return broken }
	if _, err := f.Tables(t.Context()); !errors.Is(err, broken) {
		t.Errorf("tables: got %v, want %v", err, broken)
	}
	id := xtables.TableID{Variant: xtables.NFT, Family: xtables.IPv6, Name: "filter"}
	if err := f.Remove(t.Context(), xtables.Removal{Table: id, Chains: []string{"A"}}); !errors.Is(err, broken) {
		t.Errorf("remove: got %v, want %v", err, broken)
	}
	const want = `# ip6tables-nft filter
:INPUT
:FORWARD
:OUTPUT
:A
:B
:C
-A INPUT -m comment --comment "first" -j A
-A INPUT -m comment --comment "twice"
-A INPUT -m comment --comment "between" -j ACCEPT
-A INPUT -m comment --comment "twice"
-A OUTPUT -j B
-A A -j B
-A B -j C
-A B -j RETURN
-A C -j DROP
`
	if before != want || f.String() != want {
		t.Errorf("the fake is (-want +got):\n%s", cmp.Diff(want, f.String()))
	}
}

func TestARemovalSaysWhatItIs(t *testing.T) {
	id := xtables.TableID{Variant: xtables.Legacy, Family: xtables.IPv6, Name: "nat"}
	r := xtables.Removal{Table: id, Chains: []string{"A", "B"}, Rules: []xtables.ChainRule{{Chain: "C"}}}
	if got, want := r.String(), "ip6tables-legacy nat: 1 rules, 2 chains"; got != want || r.Size() != 3 {
		t.Errorf("got %s and %d, want %s and 3", got, r.Size(), want)
	}
}
