//go:build linux

package endurance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

const guardTable = "ip sluice-localnet"

const routeLocalnetFile = "/proc/sys/net/ipv4/conf/all/route_localnet"

// waitRouteLocalnet waits until route_localnet is "1" or "0".
func (w *testEnv) waitRouteLocalnet(want string) {
	w.Helper()
	w.eventually(func() error {
		return w.lab.NodeA.Do(func() error {
			got, err := os.ReadFile(routeLocalnetFile)
			if err == nil && strings.TrimSpace(string(got)) != want {
				err = fmt.Errorf("route_localnet is %s, want %s", got, want)
			}
			return err
		})
	})
}

// waitGuard waits until the table that guards loopback addresses exists, or is deleted.
func (w *testEnv) waitGuard(want bool) {
	w.Helper()
	w.eventually(func() error {
		if got := strings.Contains(w.rules(), "table "+guardTable+" {"); got != want {
			return fmt.Errorf("the guard exists: %t, want %t", got, want)
		}
		return nil
	})
}

// configsWithLocalhost returns two configurations of a mode, with and without NodePorts on 127.0.0.1.
func configsWithLocalhost(mode string) (with, without settings) {
	return settings{"mode": mode, "nodePortAddresses": []string{"primary", "localhost"}}, settings{"mode": mode}
}

// newAttackedEnv returns an environment with a configuration that serves NodePorts on
// 127.0.0.1, and with a neighbour that sends packets for 127.0.0.0/8.
func newAttackedEnv(t *testing.T, mode string) (w *testEnv, dir string, a *attack) {
	t.Helper()
	w = newTestEnv(t)
	dir = w.tempDir()
	with, _ := configsWithLocalhost(mode)
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, with)}
	a = w.startAttack()
	w.checkAttackWorks(a)
	return w, dir, a
}

// No packet of a neighbour reaches 127.0.0.0/8 (CVE-2020-8558), even after a kill, stop or cleanup of the daemon. The
// modes run beside each other, but not beside tests with bounds of time, as the attack takes the processors.
func TestNeighboursCannotReachLoopback(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w, dir, a := newAttackedEnv(t, mode)
			with, without := configsWithLocalhost(mode)
			local := lab.Way{From: w.lab.NodeA, To: netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", nodePort))}

			d := w.start(launch{})
			d.waitSynced(1)
			w.waitRouteLocalnet("1")
			w.waitServed(local, true)
			a.checkNothingArrived("NodePorts are served on 127.0.0.1")
			w.checkKill(a, d, dir)
			w.checkStop(a, dir)
			w.checkCleanup(a, dir)
			w.checkInitOnly(a, dir)
			w.checkForeignSetting(a, dir, without)
			w.checkFlushes(a, dir, with)
		})
	}
}

// checkAttackWorks verifies that the attack succeeds without a guard, and is detected.
func (w *testEnv) checkAttackWorks(a *attack) {
	w.Helper()
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	a.waitForPackets()
	w.eventually(func() error {
		if a.arrived.Load() == 0 || a.answered() == 0 {
			return fmt.Errorf("without a guard %d datagrams arrive and %d segments are answered", a.arrived.Load(), a.answered())
		}
		return nil
	})
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "0")
	a.reset()
}

func (w *testEnv) setConfig(dir string, mode, addresses any) {
	w.config(dir, settings{"mode": mode, "nodePortAddresses": addresses})
}

func (w *testEnv) mode() string { return strings.Split(w.Name(), "/")[1] }

func (w *testEnv) setLocalhost(dir string, on []string) {
	w.setConfig(dir, w.mode(), append([]string{"primary"}, on...))
}

// stop stops the daemon with SIGTERM.
func (d *daemon) stop() {
	d.w.Helper()
	d.signal(syscall.SIGTERM)
	d.waitExit()
}

func (w *testEnv) checkKill(a *attack, d *daemon, dir string) {
	w.Helper()
	d.kill()
	a.checkNothingArrived("after kill -9")
	w.setLocalhost(dir, nil)
	d = w.start(launch{})
	d.waitSynced(1)
	w.waitRouteLocalnet("0")
	w.waitGuard(false)
	a.checkNothingArrived("after kill -9 and a restart without localhost")
	w.setLocalhost(dir, []string{"localhost"})
	w.waitRouteLocalnet("1")
	a.checkNothingArrived("after a reload with localhost")
	d.stop()
}

func (w *testEnv) checkStop(a *attack, dir string) {
	w.Helper()
	a.checkNothingArrived("after a stop")
	w.setLocalhost(dir, nil)
	d := w.start(launch{})
	d.waitSynced(1)
	w.waitRouteLocalnet("0")
	a.checkNothingArrived("after the configuration changed while the daemon was down")
	w.setLocalhost(dir, []string{"localhost"})
	w.waitRouteLocalnet("1")
	d.stop()
}

func (w *testEnv) checkCleanup(a *attack, dir string) {
	w.Helper()
	w.waitRouteLocalnet("1")
	out, status := w.runSluice("--cleanup", "--config="+dir+"/config.conf")
	if status != 0 || !strings.Contains(out, "route_localnet is 0 again") {
		w.Errorf("--cleanup exits with %d; its output:\n%s", status, out)
	}
	w.waitRouteLocalnet("0")
	w.waitGuard(false)
	a.checkNothingArrived("after --cleanup")
}

func (w *testEnv) checkInitOnly(a *attack, dir string) {
	w.Helper()
	out, status := w.runSluice("--init-only", "--config="+dir+"/config.conf", "--conntrack-max-per-core=0")
	if status != 0 {
		w.Errorf("--init-only exits with %d; its output:\n%s", status, out)
	}
	w.waitRouteLocalnet("1")
	a.checkNothingArrived("after --init-only")
	w.setLocalhost(dir, nil)
	d := w.start(launch{})
	d.waitSynced(1)
	w.waitRouteLocalnet("0")
	w.waitGuard(false)
	a.checkNothingArrived("after --init-only and a start without localhost")
	d.stop()
}

// checkForeignSetting verifies that a route_localnet set by another program is kept, with a guard.
func (w *testEnv) checkForeignSetting(a *attack, dir string, without settings) {
	w.Helper()
	w.config(dir, without)
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	d := w.start(launch{})
	w.waitGuard(true)
	a.reset()
	d.waitSynced(1)
	d.waitForLog("keeps neighbours out")
	w.waitRouteLocalnet("1")
	a.checkNothingArrived("with route_localnet set by another program")
	d.stop()
	out, status := w.runSluice("--cleanup", "--config="+dir+"/config.conf")
	if status != 0 || !strings.Contains(out, "kept sluice: ") || !strings.Contains(out, guardTable) {
		w.Errorf("--cleanup exits with %d; its output:\n%s", status, out)
	}
	a.checkNothingArrived("after a cleanup with route_localnet set by another program")
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "0")
	out, _ = w.runSluice("--cleanup", "--config="+dir+"/config.conf")
	if !strings.Contains(out, "removed sluice: table "+guardTable) {
		w.Errorf("output of --cleanup:\n%s", out)
	}
	w.waitGuard(false)
}

func (w *testEnv) checkFlushes(a *attack, dir string, with settings) {
	w.Helper()
	w.config(dir, with)
	d := w.start(launch{})
	d.waitSynced(1)
	before := a.sent.Load()
	for range flushes {
		w.lab.NodeA.Nft("flush ruleset")
		w.waitGuard(true)
	}
	w.Logf("between %d flushes and the repairs %d packets arrived, of %d of each kind",
		flushes, a.arrived.Load(), a.sent.Load()-before)
	a.reset()
	a.checkNothingArrived("after flushes of all rules")
	d.waitForLog("which keeps neighbours out of 127.0.0.0/8; it was restored")
	w.setLocalhost(dir, nil)
	w.waitRouteLocalnet("0")
	w.waitGuard(false)
	a.checkNothingArrived("after flushes and a reload without localhost")
	d.kill()
}

// No packet arrives during reloads, and after kills at random moments.
func TestNeighboursCannotReachLoopbackDuringReloads(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w, dir, a := newAttackedEnv(t, mode)
			with, without := configsWithLocalhost(mode)
			d := w.start(launch{})
			d.waitSynced(1)
			for range 10 {
				w.config(dir, without)
				w.waitRouteLocalnet("0")
				w.config(dir, with)
				w.waitRouteLocalnet("1")
			}
			a.checkNothingArrived("during 20 reloads")
			t.Logf("%d packets of each of %d kinds were sent during reloads", a.sent.Load(), len(packets()))
			for i := range 30 {
				w.config(dir, []settings{with, without}[i%2])
				time.Sleep(rand.N(100 * time.Millisecond))
				d.kill()
				d = w.start(launch{})
				time.Sleep(rand.N(400 * time.Millisecond))
			}
			a.checkNothingArrived("during kills")
			w.config(dir, without)
			d.waitSynced(1)
			w.waitRouteLocalnet("0")
			w.waitGuard(false)
			a.checkNothingArrived("at the end")
			t.Logf("%d packets of each of %d kinds were sent", a.sent.Load(), len(packets()))
		})
	}
}
