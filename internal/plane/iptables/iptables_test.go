package iptables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"

	"github.com/sluice-proxy/sluice/internal/plane/planetest"
)

// What is loaded is found again as it should be, in every shape, by the programs
// of both variants.
func TestWhatIsLoadedIsRight(t *testing.T) {
	for _, variant := range variants() {
		for name, opt := range planetest.Detectors() {
			t.Run(string(variant)+"/"+name, func(t *testing.T) {
				kernel, _ := realKernel(t, variant)
				change := planetest.Compile(planetest.EveryShape(), opt)
				load(t, kernel, change)
				settled(t, kernel, change.Table)
			})
		}
	}
}

// With many endpoints rules about single ones have no comments, as with
// kube-proxy. Where a cluster grows or shrinks, those that are there stay.
func TestCommentsOfManyEndpoints(t *testing.T) {
	fake := newFake()
	s := newStory(t, fake, nodeCIDR())
	const each = 3 // endpoints
	s.crowd(manyEndpoints / each)
	s.happens()
	if n := strings.Count(fake.String(), " -> "); n == 0 {
		t.Fatal("there are no comments on endpoints to begin with")
	}
	had := strings.Count(fake.String(), " -> ")
	for i := range 10 {
		s.endpoints(fmt.Sprint("svc-", i), "10.180.9.1", "10.180.9.2", "10.180.9.3", "10.180.9.4")
	}
	s.happens()
	s.endpoints("svc-20", "10.180.9.1", "10.180.9.2")
	s.happens()
	if strings.Contains(fake.String(), `svc-20:http -> `) || !strings.Contains(fake.String(), `svc-21:http -> `) {
		t.Error("only what changed with many endpoints should have lost its comments")
	}
	lines := fake.written()
	s.refresh()
	s.happens()
	if n := fake.written() - lines; n != 0 {
		t.Errorf("a comparison wrote %d lines, want none: comments make no difference", n)
	}
	fresh := newFake()
	load(t, fresh, route.Change{Table: s.compiler.Table()})
	if n := strings.Count(fresh.String(), " -> "); n != 0 || had == 0 {
		t.Errorf("a node that starts with many endpoints has %d comments on them, want none", n)
	}
	settled(t, fresh, s.compiler.Table())
}

func TestUncommented(t *testing.T) {
	for rule, want := range map[string]string{
		`-j A`:                                 `-j A`,
		`-m comment --comment "a -> b:1" -j A`: `-j A`,
		`-s 10.0.0.1/32 -m comment --comment a -j A`:         `-s 10.0.0.1/32 -j A`,
		`-p tcp -m comment --comment "a \"b\" c" -m tcp`:     `-p tcp -m tcp`,
		`-m comment --comment "never ends`:                   `-m comment --comment "never ends`,
		`-p udp -m comment --comment "x" -m recent --set -j`: `-p udp -m recent --set -j`,
	} {
		if got := uncommented(rule); got != want {
			t.Errorf("%s without comment is %s, want %s", rule, got, want)
		}
	}
}
