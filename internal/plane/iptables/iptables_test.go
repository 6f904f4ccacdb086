package iptables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"

	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// After a load, a new plane finds nothing to write, for every kind of rule and with the programs of both variants.
func TestASecondPlaneFindsNothingToWrite(t *testing.T) {
	for _, variant := range variants() {
		for name, opt := range planetest.Detectors() {
			t.Run(string(variant)+"/"+name, func(t *testing.T) {
				kernel, _ := realKernel(t, variant)
				change := planetest.Compile(planetest.EveryShape(), opt)
				load(t, kernel, change)
				checkSettled(t, kernel, change.Table)
			})
		}
	}
}

// With many endpoints, rules for single endpoints have no comments, as in kube-proxy.
// Existing rules are not changed when the cluster grows or shrinks.
func TestCommentsOfManyEndpoints(t *testing.T) {
	fake := newFake()
	s := newTestCluster(t, fake, nodeCIDR())
	const each = 3 // endpoints
	s.addServices(manyEndpoints / each)
	s.sync()
	if n := strings.Count(fake.String(), " -> "); n == 0 {
		t.Fatal("no rule for an endpoint has a comment at first")
	}
	had := strings.Count(fake.String(), " -> ")
	for i := range 10 {
		s.endpoints(fmt.Sprint("svc-", i), "10.180.9.1", "10.180.9.2", "10.180.9.3", "10.180.9.4")
	}
	s.sync()
	s.endpoints("svc-20", "10.180.9.1", "10.180.9.2")
	s.sync()
	if strings.Contains(fake.String(), `svc-20:http -> `) || !strings.Contains(fake.String(), `svc-21:http -> `) {
		t.Error("only rules that changed while there were many endpoints should have lost their comments")
	}
	lines := fake.written()
	s.refresh()
	s.sync()
	if n := fake.written() - lines; n != 0 {
		t.Errorf("a comparison wrote %d lines, want none: comments are not compared", n)
	}
	fresh := newFake()
	load(t, fresh, route.Change{Table: s.compiler.Table()})
	if n := strings.Count(fresh.String(), " -> "); n != 0 || had == 0 {
		t.Errorf("a node that starts with many endpoints has %d comments on them, want none", n)
	}
	checkSettled(t, fresh, s.compiler.Table())
}

func TestUncommented(t *testing.T) {
	for rule, want := range map[string]string{
		`-j A`:                                 `-j A`,
		`-m comment --comment "a -> b:1" -j A`: `-j A`,
		`-p tcp -m comment --comment "a:b" -m tcp`:           `-p tcp -m tcp`,
		`-m comment --comment "never ends`:                   `-m comment --comment "never ends`,
		`-p udp -m comment --comment "x" -m recent --set -j`: `-p udp -m recent --set -j`,
	} {
		if got := uncommented(rule); got != want {
			t.Errorf("%s without comment is %s, want %s", rule, got, want)
		}
	}
}
