//go:build linux

package conformance

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// A variant uses the lab of the one before only if nothing of the plane remains there, and if no step has altered it.
func TestLeave(t *testing.T) {
	for name, tt := range map[string]struct {
		remains    func(*env)
		fails, own bool
	}{
		"nothing remains": {remains: func(*env) {}},
		"rules remain": {
			remains: func(e *env) { e.lab.NodeA.Nft("table ip sluice-old {}") },
			fails:   true, own: true,
		},
		"an address remains": {
			remains: func(e *env) { e.lab.NodeA.AddAddr(netip.MustParseAddr("172.30.0.41")) },
			fails:   true, own: true,
		},
		"a parameter remains":   {remains: func(e *env) { e.lab.NodeA.Sysctl(routeLocalnet, "1") }, fails: true, own: true},
		"a step has altered it": {remains: func(e *env) { e.alters("a test") }, own: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := scenario{cluster: exposed("Cluster", "10.180.0.1 A")}.setUpAlone(t, nftablesPlane())
			tt.remains(e)
			if err := e.leave(); (err != nil) != tt.fails {
				t.Errorf("the error is %v; want one: %t", err, tt.fails)
			}
			before := e.lab.NodeA.NetNSFD()
			if after := e.world.enter(t).NodeA.NetNSFD(); (after != before) != tt.own {
				t.Errorf("the next variant has a lab of its own: %t, want %t", after != before, tt.own)
			}
		})
	}
}

// What a variant adds to the lab stays until the test of the scenario ends.
func TestOwner(t *testing.T) {
	w := newWorld(t, lab.Options{})
	t.Run("a variant", func(t *testing.T) {
		e := &env{t: t, world: w, lab: w.enter(t), hosts: map[string]*lab.Host{}}
		e.serve(e.podAt(netip.MustParseAddr("10.180.0.1"), ""), lab.TCP, 80)
	})
	// The pod still serves.
	if r := w.lab.NodeA.Dial(lab.TCP, netip.MustParseAddrPort("10.180.0.1:80")); r.Outcome != lab.Answered {
		t.Errorf("the pod of a variant: %s", r)
	}
}
