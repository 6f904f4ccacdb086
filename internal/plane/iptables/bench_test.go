package iptables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// nowhere is a kernel that takes everything and has nothing: what a plan costs
// without the programs.
type nowhere struct{ *fakeKernel }

func (nowhere) Restore(context.Context, iptables.Family, []byte) error { return nil }

// sizes are numbers of Services; each has three endpoints.
func sizes() []int { return []int{1_000, 10_000} }

// BenchmarkChange is one change, from what differs to what the program would be
// given. It must cost the same whatever the number of Services.
func BenchmarkChange(b *testing.B) {
	for _, n := range sizes() {
		s := newStory(b, nowhere{newFake()}, nodeCIDR())
		s.crowd(n)
		s.happens()
		for _, c := range []struct {
			name         string
			there, again func()
		}{
			{"endpoint", func() { s.member(7, 4) }, func() { s.member(7, 3) }},
			{"all-endpoints", func() { s.member(7, 0) }, func() { s.member(7, 3) }},
			{"service", func() { s.member(60_000, 3) }, func() { s.remove("svc-60000") }},
		} {
			changes := [2]route.Change{s.compiled(c.there), s.compiled(c.again)}
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

// compiled is what a change of the cluster comes to.
func (s *story) compiled(do func()) route.Change {
	s.Helper()
	do()
	change, _ := s.compiler.Compile(s.store.Take())
	if len(change.Touched) != 1 {
		s.Fatalf("%d Services change, want one", len(change.Touched))
	}
	return change
}

// BenchmarkRestart compares everything with a kernel in which all is right,
// BenchmarkColdLoad with one that holds nothing.
func BenchmarkRestart(b *testing.B) {
	for _, n := range sizes() {
		s := newStory(b, newFake(), nodeCIDR())
		s.crowd(n)
		s.happens()
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { s.compare(b) })
	}
}

func BenchmarkColdLoad(b *testing.B) {
	for _, n := range sizes() {
		s := newStory(b, nowhere{newFake()}, nodeCIDR())
		s.crowd(n)
		s.happens()
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { s.compare(b) })
	}
}

func (s *story) compare(b *testing.B) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		s.refresh()
		if err := s.plane.Plan(route.Change{Table: s.compiler.Table()}).Apply(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// What the benchmark measures is a plan of a few lines.
func TestAChangeIsSmallAtAnySize(t *testing.T) {
	var plans []plane.Plan
	for _, n := range []int{10, 300} {
		s := newStory(t, nowhere{newFake()}, nodeCIDR())
		s.crowd(n)
		s.happens()
		plans = append(plans, s.plane.Plan(s.compiled(func() { s.member(7, 4) })))
	}
	if plans[0].String() != plans[1].String() || plans[0].Steps() > 9 {
		t.Errorf("with more Services the plan is\n%s\nwant\n%s", plans[1], plans[0])
	}
	if text := plans[0].String(); !strings.Contains(text, `"shop/svc-7:http`) {
		t.Errorf("the plan is not about svc-7:\n%s", text)
	}
}
