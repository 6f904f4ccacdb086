//go:build linux

package endurance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

const guardTable = "ip sluice-localnet"

const parameter = "/proc/sys/net/ipv4/conf/all/route_localnet"

// routes waits until the kernel routes loopback addresses, "1", or not, "0".
func (w *world) routes(want string) {
	w.Helper()
	w.eventually(func() error {
		if got := strings.TrimSpace(w.lab.NodeA.MustRun("cat", parameter)); got != want {
			return fmt.Errorf("route_localnet is %s, want %s", got, want)
		}
		return nil
	})
}

// guarded waits until the table that guards loopback addresses exists, or is gone.
func (w *world) guarded(want bool) {
	w.Helper()
	w.eventually(func() error {
		if got := strings.Contains(w.rules(), "table "+guardTable+" {"); got != want {
			return fmt.Errorf("the guard is there: %t, want %t", got, want)
		}
		return nil
	})
}

// modal returns two configurations of a mode, with and without NodePorts on
// 127.0.0.1.
func modal(mode string) (with, without settings) {
	return settings{"mode": mode, "nodePortAddresses": []string{"primary", "localhost"}}, settings{"mode": mode}
}

// underAttack makes a world for a mode, with NodePorts on 127.0.0.1 in the configuration
// in a folder, and neighbours that send packets for 127.0.0.0/8.
func underAttack(t *testing.T, mode string) (w *world, dir string, a *attack) {
	t.Helper()
	w = newWorld(t)
	dir = w.folder()
	with, _ := modal(mode)
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, with)}
	a = w.attack()
	w.provable(a)
	return w, dir, a
}

// From a neighbour nothing reaches 127.0.0.0/8, whatever happens to the daemon
// (CVE-2020-8558).
func TestNeighboursAreKeptOutOfLoopback(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			w, dir, a := underAttack(t, mode)
			with, without := modal(mode)
			local := lab.Way{From: w.lab.NodeA, To: netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", nodePort))}

			d := w.start(launch{})
			d.settled(1)
			w.routes("1")
			w.serves(local, true)
			a.repelled("NodePorts are served on 127.0.0.1")
			w.afterAKill(a, d, dir)
			w.afterAStop(a, dir)
			w.afterACleanup(a, dir)
			w.afterPreparation(a, dir)
			w.foundOn(a, dir, without)
			w.afterAFlush(a, dir, with)
		})
	}
}

// provable verifies that the attack is detected where there is no guard.
func (w *world) provable(a *attack) {
	w.Helper()
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	a.round()
	w.eventually(func() error {
		if a.arrived.Load() == 0 || a.answered() == 0 {
			return fmt.Errorf("without a guard %d datagrams arrive and %d segments are answered", a.arrived.Load(), a.answered())
		}
		return nil
	})
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "0")
	a.forget()
}

func (w *world) become(dir string, mode, addresses any) {
	w.config(dir, settings{"mode": mode, "nodePortAddresses": addresses})
}

func (w *world) mode() string { return strings.Split(w.Name(), "/")[1] }

func (w *world) localhost(dir string, on []string) {
	w.become(dir, w.mode(), append([]string{"primary"}, on...))
}

// stop ends a daemon as systemd does.
func (d *daemon) stop() {
	d.w.Helper()
	d.signal(syscall.SIGTERM)
	d.dead()
}

func (w *world) afterAKill(a *attack, d *daemon, dir string) {
	w.Helper()
	d.kill()
	a.repelled("after kill -9")
	w.localhost(dir, nil)
	d = w.start(launch{})
	d.settled(1)
	w.routes("0")
	w.guarded(false)
	a.repelled("after kill -9 and a restart without localhost")
	w.localhost(dir, []string{"localhost"})
	w.routes("1")
	a.repelled("after a reload with localhost")
	d.stop()
}

func (w *world) afterAStop(a *attack, dir string) {
	w.Helper()
	a.repelled("after a stop")
	w.localhost(dir, nil)
	d := w.start(launch{})
	d.settled(1)
	w.routes("0")
	a.repelled("after the configuration changed while the daemon was down")
	w.localhost(dir, []string{"localhost"})
	w.routes("1")
	d.stop()
}

func (w *world) afterACleanup(a *attack, dir string) {
	w.Helper()
	w.routes("1")
	out, status := w.asks("--cleanup", "--config="+dir+"/config.conf")
	if status != 0 || !strings.Contains(out, "route_localnet is 0 again") {
		w.Errorf("--cleanup ends with %d and says:\n%s", status, out)
	}
	w.routes("0")
	w.guarded(false)
	a.repelled("after --cleanup")
}

func (w *world) afterPreparation(a *attack, dir string) {
	w.Helper()
	if out, status := w.asks("--init-only", "--config="+dir+"/config.conf", "--conntrack-max-per-core=0"); status != 0 {
		w.Errorf("--init-only ends with %d and says:\n%s", status, out)
	}
	w.routes("1")
	a.repelled("after --init-only")
	w.localhost(dir, nil)
	d := w.start(launch{})
	d.settled(1)
	w.routes("0")
	w.guarded(false)
	a.repelled("after --init-only and a start without localhost")
	d.stop()
}

// foundOn: another program set the parameter. It stays, with a guard.
func (w *world) foundOn(a *attack, dir string, without settings) {
	w.Helper()
	w.config(dir, without)
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	d := w.start(launch{})
	w.guarded(true)
	a.forget()
	d.settled(1)
	d.says("keeps neighbours out")
	w.routes("1")
	a.repelled("with a parameter that another program set")
	d.stop()
	out, status := w.asks("--cleanup", "--config="+dir+"/config.conf")
	if status != 0 || !strings.Contains(out, "kept sluice: ") || !strings.Contains(out, guardTable) {
		w.Errorf("--cleanup ends with %d and says:\n%s", status, out)
	}
	a.repelled("after a clean-up with a parameter that another program set")
	w.lab.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "0")
	if out, _ := w.asks("--cleanup", "--config="+dir+"/config.conf"); !strings.Contains(out, "removed sluice: table "+guardTable) {
		w.Errorf("--cleanup says:\n%s", out)
	}
	w.guarded(false)
}

func (w *world) afterAFlush(a *attack, dir string, with settings) {
	w.Helper()
	w.config(dir, with)
	d := w.start(launch{})
	d.settled(1)
	before := a.sent.Load()
	for range flushes {
		w.lab.NodeA.Nft("flush ruleset")
		w.guarded(true)
	}
	w.Logf("between %d flushes and the repairs %d packets arrived, of %d of each sort", flushes, a.arrived.Load(), a.sent.Load()-before)
	a.forget()
	a.repelled("after flushes of all rules")
	d.says("which keeps neighbours out of 127.0.0.0/8; it was restored")
	w.localhost(dir, nil)
	w.routes("0")
	w.guarded(false)
	a.repelled("after flushes and a reload without localhost")
	d.kill()
}

// During reloads, and kills at any moment, nothing arrives either.
func TestNeighboursAreKeptOutOfLoopbackAtEveryMoment(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			w, dir, a := underAttack(t, mode)
			with, without := modal(mode)
			d := w.start(launch{})
			d.settled(1)
			for range 10 {
				w.config(dir, without)
				w.routes("0")
				w.config(dir, with)
				w.routes("1")
			}
			a.repelled("during 20 reloads")
			t.Logf("%d packets of each of %d sorts were sent during reloads", a.sent.Load(), len(packets()))
			for i := range 30 {
				w.config(dir, []settings{with, without}[i%2])
				time.Sleep(rand.N(100 * time.Millisecond))
				d.kill()
				d = w.start(launch{})
				time.Sleep(rand.N(400 * time.Millisecond))
			}
			a.repelled("during kills")
			w.config(dir, without)
			d.settled(1)
			w.routes("0")
			w.guarded(false)
			a.repelled("in the end")
			t.Logf("%d packets of each of %d sorts were sent", a.sent.Load(), len(packets()))
		})
	}
}
