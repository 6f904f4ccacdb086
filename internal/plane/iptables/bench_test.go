package iptables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// discard is a kernel without rules that ignores writes, to measure plans without the cost of the programs.
type discard struct{ *fakeKernel }

func (discard) Restore(context.Context, iptables.Family, []byte) error { return nil }

// sizes are numbers of Services; each has three endpoints.
func sizes() []int { return []int{1_000, 10_000} }

// BenchmarkChange measures one change, from the difference to the input of the program. The
// time must not depend on the number of Services.
func BenchmarkChange(b *testing.B) {
	for _, n := range sizes() {
		s := newTestCluster(b, discard{newFake()}, nodeCIDR())
		s.addServices(n)
		s.sync()
		for _, c := range []struct {
			name     string
			do, undo func()
		}{
			{"endpoint", func() { s.setService(7, 4) }, func() { s.setService(7, 3) }},
			{"all-endpoints", func() { s.setService(7, 0) }, func() { s.setService(7, 3) }},
			{"service", func() { s.setService(60_000, 3) }, func() { s.remove("svc-60000") }},
		} {
			changes := [2]route.Change{s.compiled(c.do), s.compiled(c.undo)}
			b.Run(fmt.Sprintf("%s/services=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for k := 0; b.Loop(); k++ {
					if err := s.plane.Plan(changes[k%2]).Apply(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// compiled makes a change of the cluster and returns its compiled form.
func (s *testCluster) compiled(do func()) route.Change {
	s.Helper()
	do()
	change, _ := s.compiler.Compile(s.store.Take())
	if len(change.Touched) != 1 {
		s.Fatalf("%d Services change, want one", len(change.Touched))
	}
	return change
}

// BenchmarkRestart measures a comparison with a kernel that has all rules, BenchmarkColdLoad one with an empty kernel.
func BenchmarkRestart(b *testing.B) {
	for _, n := range sizes() {
		s := newTestCluster(b, newFake(), nodeCIDR())
		s.addServices(n)
		s.sync()
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { s.compare(b) })
	}
}

func BenchmarkColdLoad(b *testing.B) {
	for _, n := range sizes() {
		s := newTestCluster(b, discard{newFake()}, nodeCIDR())
		s.addServices(n)
		s.sync()
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { s.compare(b) })
	}
}

func (s *testCluster) compare(b *testing.B) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		s.refresh()
		if err := s.plane.Plan(route.Change{Table: s.compiler.Table()}).Apply(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// The plan that BenchmarkChange measures has a few lines.
func TestAChangeIsSmallAtAnySize(t *testing.T) {
	var plans []plane.Plan
	for _, n := range []int{10, 300} {
		s := newTestCluster(t, discard{newFake()}, nodeCIDR())
		s.addServices(n)
		s.sync()
		plans = append(plans, s.plane.Plan(s.compiled(func() { s.setService(7, 4) })))
	}
	if plans[0].String() != plans[1].String() || plans[0].Steps() > 9 {
		t.Errorf("with more Services the plan is\n%s\nwant\n%s", plans[1], plans[0])
	}
	if text := plans[0].String(); !strings.Contains(text, `"shop/svc-7:http`) {
		t.Errorf("the plan is not about svc-7:\n%s", text)
	}
}
