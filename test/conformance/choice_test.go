//go:build linux

package conformance

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The scenarios that iptables-legacy runs have every shape of rules that any scenario has when it starts.
func TestShapes(t *testing.T) {
	replace := replacements()
	shapes := map[int]map[string]bool{} // by S-number: every scenario with that number runs
	for _, s := range scenarios() {
		of := shapesOf(t, s, replace)
		for _, n := range s.covers {
			if shapes[n] == nil {
				shapes[n] = map[string]bool{}
			}
			maps.Copy(shapes[n], of)
		}
	}
	missing := map[string]bool{}
	for _, of := range shapes {
		maps.Copy(missing, of)
	}
	all := len(missing)
	chosen, err := selected("iptables-legacy", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range chosen {
		maps.DeleteFunc(missing, func(shape string, _ bool) bool { return shapes[n][shape] })
	}
	t.Logf("%d shapes, %d numbers", all, len(chosen))
	if len(missing) > 0 {
		t.Errorf("no chosen scenario has %d shapes of rules; coverShapes could have, in addition, %v:\n%s",
			len(missing), cover(maps.Clone(missing), shapes), strings.Join(slices.Sorted(maps.Keys(missing)), "\n"))
	}
}

// cover returns few numbers that have all shapes.
func cover(missing map[string]bool, shapes map[int]map[string]bool) (few []int) {
	for len(missing) > 0 {
		best, most := 0, 0
		for _, number := range slices.Sorted(maps.Keys(shapes)) {
			n := 0
			for shape := range shapes[number] {
				if missing[shape] {
					n++
				}
			}
			if n > most {
				best, most = number, n
			}
		}
		few = append(few, best)
		maps.DeleteFunc(missing, func(shape string, _ bool) bool { return shapes[best][shape] })
	}
	slices.Sort(few)
	return few
}

// shapesOf returns the shapes of the rules that a scenario begins with, in mode iptables.
func shapesOf(t *testing.T, s scenario, replace []replacement) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, ipv6 := range s.variants() {
		tr := translator{ipv6}
		objects, store := newObjects(s.settings), cluster.NewStore()
		for _, text := range slices.Concat(base(), tr.texts(s.cluster)) {
			if err := objects.set(text); err != nil {
				t.Fatalf("%s: %v", s.name(), err)
			}
		}
		objects.fill(store)
		store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("2001:db8::1")})
		change, _ := route.NewCompiler(options(s.settings, tr, Iptables("legacy"))).Compile(store.Take())
		setup := plane.Setup{Families: bothFamiliesOf(), Config: &config.Config{MasqueradeMark: 0x4000}}
		p := iptables.Kind().Preview(setup)
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(p.Plan(change).String()) {
			for _, r := range replace {
				line = r.old.ReplaceAllString(line, r.by)
			}
			all[strings.TrimSpace(line)] = true
		}
	}
	return all
}

// replacement replaces a part of a rule that differs between Services of the same kind.
type replacement struct {
	old *regexp.Regexp
	by  string
}

func replacements() (all []replacement) {
	for _, r := range []struct{ old, by string }{
		{`-m comment --comment ("[^"]*"|\S+)`, "COMMENT"},
		{`\b(KUBE-[A-Z]+)-[A-Z2-7]{16}\b`, "$1-HASH"},
		{`--probability \S+`, "--probability P"},
		{`\[?[0-9a-f:]*::[0-9a-f]*\]?(/\d+)?`, "ADDR"},
		{`\d+\.\d+\.\d+\.\d+(/\d+)?`, "ADDR"},
		{`ADDR:\d+`, "ADDR:PORT"},
		{`(--dport|--to-ports|--seconds) \d+`, "$1 N"},
		{`--name \S+`, "--name NAME"},
	} {
		all = append(all, replacement{regexp.MustCompile(r.old), r.by})
	}
	return all
}

// The lists have numbers of scenarios only, and FULL=1 and SCENARIOS select as the package comment says.
func TestSelected(t *testing.T) {
	covered := coveredNumbers()
	for _, n := range slices.Concat(numbers(dependOnKernel()), numbers(dependOnVariant()), coverShapes()) {
		if !covered[n] {
			t.Errorf("no scenario covers S-%03d", n)
		}
	}
	for _, tt := range []struct {
		plane, full, scenarios string
		all, fails             bool
	}{
		{plane: "nftables", all: true},
		{plane: "nftables", scenarios: "kernel"},
		{plane: "iptables-legacy"},
		{plane: "iptables-legacy", full: "1", all: true},
		{plane: "iptables-legacy", full: "1", scenarios: "kernel"},
		{plane: "nftables", scenarios: "kernels", all: true, fails: true},
	} {
		got, err := selected(tt.plane, func(name string) string {
			return map[string]string{fullVar: tt.full, scenariosVar: tt.scenarios}[name]
		})
		if (got == nil) != tt.all || (err != nil) != tt.fails {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
}
