//go:build linux

package endurance

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/control"
)

// replace starts a Sluice that takes the place of another one, which then stands by.
func (w *testEnv) replace(old *daemon) *daemon {
	w.Helper()
	next := w.start(launch{}, "--replace")
	old.waitForLog("Standing by")
	w.eventually(func() error {
		s, err := w.status()
		if err == nil && s.PID != next.cmd.Process.Pid {
			err = fmt.Errorf("process %d serves, want %d\n%s", s.PID, next.cmd.Process.Pid, next.log)
		}
		return err
	})
	next.waitSynced(1)
	old.checkAlive()
	return next
}

// endStandBy ends a Sluice that stands by. It exits without an error.
func (d *daemon) endStandBy() {
	d.w.Helper()
	d.signal(syscall.SIGTERM)
	d.waitExit()
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.w.Errorf("exit status %d, want 0:\n%s", code, d.log)
	}
}

// A new process takes the place of a running one. No connection and no probe is refused; in mode userspace no
// connection that is open ends.
func TestReplace(t *testing.T) {
	for _, mode := range []string{"nftables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			w := newTestEnv(t)
			w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--proxy-mode=" + mode, "--drain-timeout=3s"}
			if mode == "nftables" {
				w.args = w.args[:3]
			}
			d := w.start(launch{}, "--replace") // a normal start
			d.waitSynced(1)
			open := w.keep(0)
			traffic, healthz, metrics := w.startTraffic(), w.startProbes("192.168.0.2:10256"), w.startProbes(metricsAt)
			for range 10 {
				next := w.replace(d)
				if err := traffic.Broken(); err != nil {
					w.Fatalf("%v\n%s\n%s", err, d.log, next.log)
				}
				d.endStandBy()
				d = next
			}
			w.checkTraffic(traffic)
			w.checkDiff()
			healthz.end()
			metrics.end()
			if err := open.end(); err != nil {
				w.Errorf("a connection that was open: %v\n%s", err, d.log)
			}
		})
	}
}

// A Sluice that stands by serves again when its successor is killed.
func TestStandByTakesOver(t *testing.T) {
	w := newTestEnv(t)
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--proxy-mode=userspace"}
	first := w.start(launch{})
	first.waitSynced(1)
	second := w.replace(first)
	third := w.replace(second)
	third.kill()
	w.eventually(func() error {
		if n := first.log.count("has ended; starting again") + second.log.count("has ended; starting again"); n != 1 {
			return fmt.Errorf("%d start again, want 1", n)
		}
		return nil
	})
	w.eventually(func() error {
		_, err := w.status()
		return err
	})
	w.waitAnsweredBy(w.client, w.ways()[0].To, 0, 1, 2)
	first.checkAlive()
	second.checkAlive()
}

// A Sluice without --replace names the way to take over, and an invalid one leaves the other one as it is.
func TestReplaceThatFails(t *testing.T) {
	w := newTestEnv(t)
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--proxy-mode=userspace"}
	d := w.start(launch{})
	d.waitSynced(1)
	open, traffic := w.keep(0), w.startTraffic()
	if out, status := w.runSluice(w.args...); status == 0 || !strings.Contains(out, "--replace") {
		w.Errorf("status %d, want an error that names --replace: %s", status, out)
	}
	if out, status := w.runSluice(append(w.args, "--replace", "--cluster-cidr=none")...); status == 0 {
		w.Errorf("an invalid configuration is no error: %s", out)
	}
	if n := d.log.count("takes the place"); n != 0 {
		w.Errorf("the running Sluice was asked:\n%s", d.log)
	}
	for n := range 3 { // a process asks, and ends before it has received everything
		c, err := control.Succeed(w.Context(), control.Options{NetNS: w.lab.NodeA.NetNSFD()})
		w.must(err)
		_, err = io.ReadFull(c, make([]byte, 20))
		w.must(err)
		w.must(c.Close())
		w.eventually(func() error {
			if got := d.log.count("did not take the place"); got != n+1 {
				return fmt.Errorf("%d attempts are logged, want %d:\n%s", got, n+1, d.log)
			}
			return nil
		})
		d.waitSynced(1)
	}
	w.checkTraffic(traffic)
	if err := open.end(); err != nil {
		w.Errorf("a connection that was open: %v", err)
	}
}
