package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/nfacct"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// atLoopback returns a cluster whose NodePorts are also served at 127.0.0.0/8.
func atLoopback() route.Change {
	return planetest.Compile(planetest.EveryShape(), route.Options{
		NodePorts: route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded},
	})
}

// counting returns the number of rules of a family that count with nfacct, by kind. It
// verifies that each is in the right place.
func counting(t *testing.T, kernel Kernel, f iptables.Family) (nodePort, invalid int) {
	t.Helper()
	for _, table := range everyTable() {
		chains, err := kernel.Read(t.Context(), iptables.Table{Family: f, Name: table.String()})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range chains {
			for i, rule := range c.Rules {
				switch {
				case rule == "-m conntrack --ctstate INVALID -m nfacct --nfacct-name "+InvalidDropped+" -j DROP" && name == forward:
					invalid++
				case strings.HasPrefix(rule, "-d 127.0.0.0/8 ") && name == nodePorts:
					nodePort++
					// A later rule for all addresses has the same target.
					all := strings.Replace(strings.TrimPrefix(rule, "-d 127.0.0.0/8 "),
						" -m nfacct --nfacct-name "+LoopbackNodePorts, "", 1)
					if !slices.Contains(c.Rules[i:], all) {
						t.Errorf("after %s there is no %s", rule, all)
					}
				case strings.Contains(rule, "nfacct"):
					t.Errorf("%s %s: %s", table, name, rule)
				}
			}
		}
	}
	return nodePort, invalid
}

// Rules count if the plane has Accounting, and a new plane finds them as wanted. Missing objects are created.
func TestAccounting(t *testing.T) {
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			kernel, netns := realKernel(t, variant)
			objects := nfacct.New(netns)
			change := atLoopback()
			with := Options{Families: route.Families(), Mark: testMark, Accounting: objects}
			without := with
			without.Accounting = nil

			for _, step := range []struct {
				opt  Options
				want [4]int
			}{
				{without, [4]int{}},
				{with, [4]int{nodePortsOf(change.Table, route.IPv4), 1, 0, 1}},
				{without, [4]int{}},
			} {
				planetest.Load(t, New(kernel, step.opt), change)
				var got [4]int
				got[0], got[1] = counting(t, kernel, iptables.IPv4)
				got[2], got[3] = counting(t, kernel, iptables.IPv6)
				if got != step.want {
					t.Errorf("rules that count: %v, want %v", got, step.want)
				}
				p := New(kernel, step.opt)
				if err := p.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				if plan := p.Plan(route.Change{Table: change.Table}); plan.Steps() != 0 {
					t.Errorf("%d steps left to do:\n%.2000s", plan.Steps(), plan)
				}
			}
			for _, name := range []string{InvalidDropped, LoopbackNodePorts} {
				if _, err := objects.Read(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// nodePortsOf returns the number of NodePorts that lead to backends.
func nodePortsOf(table *route.Table, f route.Family) (n int) {
	for _, svc := range table.Services {
		for _, p := range svc.Ports {
			for _, frontend := range p.Frontends {
				if p.Family == f && frontend.Kind == route.NodePort && frontend.Node.Verdict == route.Balance {
					n++
				}
			}
		}
	}
	return n
}

// failingAccounting creates no objects, and returns an error if it has one.
type failingAccounting struct{ err error }

func (r *failingAccounting) Ensure(context.Context, ...string) error { return r.err }

// The objects are created when a comparison is applied, and by nothing else. Without them
// nothing is written, and the next comparison tries again.
func TestAComparisonCreatesAccountingObjects(t *testing.T) {
	objects := &failingAccounting{errors.New("no memory")}
	p := New(newFake(), Options{Families: route.Families(), Mark: testMark, Accounting: objects})
	change := atLoopback()
	compare := func() (steps int, err error) {
		t.Helper()
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatalf("a read fails: %v", err)
		}
		plan := p.Plan(change)
		return plan.Steps(), plan.Apply(t.Context())
	}
	before, err := compare()
	if !errors.Is(err, objects.err) {
		t.Errorf("got %v", err)
	}
	objects.err = nil
	if steps, err := compare(); err != nil || steps != before {
		t.Errorf("%d steps (%v) after a failure, want all %d", steps, err, before)
	}
	objects.err = errors.New("accounting was used")
	if err := p.Plan(route.Change{Table: change.Table}).Apply(t.Context()); err != nil {
		t.Errorf("a change that is no comparison: %v", err)
	}
}

// A node that does not drop invalid packets has no rule that counts them.
func TestInvalidPacketsThatAreKeptAreNotCounted(t *testing.T) {
	p := New(newFake(), Options{Families: route.Families(), KeepInvalid: true, Accounting: &failingAccounting{}})
	var rules []string
	for _, e := range p.families[0].hostEntries(&route.Host{}, p.opt) {
		rules = append(rules, slices.Collect(split(e.Value))...)
	}
	if slices.ContainsFunc(rules, func(r string) bool {
		return strings.Contains(r, "nfacct") || strings.Contains(r, "INVALID")
	}) {
		t.Errorf("rules %q", rules)
	}
}

// The counting rule is first even after another program has deleted the rule for all addresses.
func TestCountingRulesStayInFront(t *testing.T) {
	fake := newFake()
	change := atLoopback()
	opt := Options{Families: route.Families(), Mark: testMark, Accounting: noObjects{}}
	apply := func() {
		t.Helper()
		p := New(fake, opt)
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Plan(change).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	before, _ := counting(t, fake, iptables.IPv4)
	chains, err := fake.Read(t.Context(), iptables.Table{Family: iptables.IPv4, Name: "nat"})
	if err != nil {
		t.Fatal(err)
	}
	var input strings.Builder
	input.WriteString("*nat\n")
	for _, rule := range chains[nodePorts].Rules {
		if !strings.HasPrefix(rule, "-d ") {
			input.WriteString("-D " + nodePorts + " " + rule + "\n")
		}
	}
	input.WriteString("COMMIT\n")
	fake.edit(t, iptables.IPv4, input.String())
	apply()
	if after, _ := counting(t, fake, iptables.IPv4); after != before || after == 0 {
		t.Errorf("%d rules count, want %d", after, before)
	}
}

// The counting rule is first in a shared chain that is written as a whole, too.
func TestCountingRulesComeFirstInARewrittenChain(t *testing.T) {
	fake := newFake()
	opt := nodeCIDR()
	opt.NodePorts = route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
	s := newTestCluster(t, fake, opt)
	s.plane = New(fake, Options{Families: route.Families()[:1], Mark: testMark, Accounting: noObjects{}})
	s.refresh()
	for i := range maxDeletions + 5 {
		s.service(fmt.Sprint("svc-", i), fmt.Sprint("172.30.0.", i+1), func(svc *cluster.Service) {
			svc.Type, svc.Ports[0].NodePort = cluster.NodePort, 30000+uint16(i)
		})
		s.endpoints(fmt.Sprint("svc-", i), "10.180.0.1")
	}
	s.sync()
	for i := range maxDeletions + 1 {
		s.remove(fmt.Sprint("svc-", i))
	}
	if plan := s.sync(); !strings.Contains(plan, ":"+nodePorts+" -") {
		t.Errorf("the chain is not written as a whole:\n%.2000s", plan)
	}
	if n, _ := counting(t, fake, iptables.IPv4); n != 4 {
		t.Errorf("%d rules count, want 4", n)
	}
}

// noObjects is an Accounting that does nothing.
type noObjects struct{}

func (noObjects) Ensure(context.Context, ...string) error { return nil }
