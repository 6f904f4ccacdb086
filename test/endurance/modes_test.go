//go:build linux

package endurance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// A change from mode userspace to another one, and back, ends no connection that is open, and refuses none. Also
// a connection that was opened two modes before goes on.
func TestModesAfterUserspaceKeepConnections(t *testing.T) {
	w := newTestEnv(t)
	dir := w.tempDir()
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, settings{"mode": "userspace"})}
	d := w.start(launch{})
	d.waitSynced(1)
	open := []*kept{w.keep(0), w.keep(1)}
	var traffic *lab.Steady
	change := func(n int, s settings) {
		t.Helper()
		traffic = w.startTraffic()
		w.config(dir, s)
		w.eventually(func() error {
			if got := w.reloads(d); got != n {
				return fmt.Errorf("%d configurations took effect, want %d:\n%s", got, n, d.log)
			}
			return nil
		})
		d.waitSynced(1)
		w.checkTraffic(traffic)
		for i, k := range open {
			if k.broken.Load() > 0 {
				t.Fatalf("after change %d to %v connection %d is broken:\n%s", n, s, i, d.log)
			}
		}
		w.checkDiff()
		open = append(open, w.keep(n%3))
	}
	change(1, settings{"mode": "nftables"})
	w.eventually(func() error {
		if rules := w.rules(); strings.Contains(rules, "KUBE-PORTALS") {
			return fmt.Errorf("rules of the previous mode remain:\n%.2000s", rules)
		}
		return nil
	})
	change(2, settings{"mode": "nftables", "nftables": object{"masqueradeAll": true}})
	if n := d.log.count("Connections of another mode go on"); n != 2 {
		t.Errorf("%d runs say that connections go on, want 2:\n%s", n, d.log)
	}
	change(3, settings{"mode": "iptables"})
	change(4, settings{"mode": "userspace"})
	change(5, settings{"mode": "nftables"})
	for i, k := range open {
		if err := k.end(); err != nil {
			t.Errorf("connection %d: %v\n%s", i, err, d.log)
		}
		k.close()
	}
	w.eventually(func() error {
		if d.log.count("The last connection of another mode has ended") == 0 {
			return fmt.Errorf("connections are left:\n%s", d.log)
		}
		return nil
	})
	w.eventually(func() error {
		if addrs := w.lab.NodeA.MustRun("ip", "address", "show", "dev", "lo"); strings.Contains(addrs, "169.254.73.1") {
			return fmt.Errorf("the addresses of the sockets are left:\n%s", addrs)
		}
		return nil
	})
}
