//go:build linux

package endurance

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
)

// replace starts a Sluice that takes over from another one, which then stands by.
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

// A new process takes over from a running one. No connection and no probe is refused; in mode userspace no
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
	if n := d.log.count("Handing over"); n != 0 {
		w.Errorf("the running Sluice was asked:\n%s", d.log)
	}
	for n := range 3 { // a process asks, and ends before it has received everything
		c, err := control.Succeed(w.Context(), control.Options{NetNS: w.lab.NodeA.NetNSFD()})
		w.must(err)
		_, err = io.ReadFull(c, make([]byte, 20))
		w.must(err)
		w.must(c.Close())
		w.eventually(func() error {
			if got := d.log.count("Handover failed"); got != n+1 {
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

// Without privileges a process takes over, too: connections and UDP flows from this host go on.
func TestReplaceOnLoopback(t *testing.T) {
	w := newTestEnv(t)
	ports := []object{{"name": "tcp", "port": 8080}, {"name": "udp", "port": 8080, "protocol": "UDP"}}
	w.write("web.json", []any{
		harness.Service("local", object{"clusterIP": webIP4, "ports": ports}),
		harness.EndpointSlice("local", "IPv4", []object{
			{"name": "tcp", "port": 9001}, {"name": "udp", "port": 9001, "protocol": "UDP"},
		}, "127.0.0.1"),
	})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--proxy-mode=userspace", "--bind=loopback"}
	var ask [2]func() (string, error)
	kerneltest.Do(t, w.lab.NodeA.NetNSFD(), func() error {
		l, err := net.Listen("tcp", "127.0.0.1:9001")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		u, err := net.ListenPacket("udp", "127.0.0.1:9001")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = u.Close() })
		go answerTCP(l)
		go answerUDP(u)
		return nil
	})
	d := w.start(launch{})
	d.waitForLog("Synced")
	kerneltest.Do(t, w.lab.NodeA.NetNSFD(), func() error {
		for i, network := range []string{"tcp", "udp"} {
			c, err := net.Dial(network, "127.0.0.1:8080")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() })
			ask[i] = func() (string, error) { return question(c) }
		}
		return nil
	})
	var first [2]string
	for run := range 5 {
		for i := range ask {
			seen, err := ask[i]()
			if err != nil || run > 0 && seen != first[i] {
				t.Fatalf("run %d: the backend sees %q, %v, want %q\n%s", run, seen, err, first[i], d.log)
			}
			first[i] = seen
		}
		next := w.start(launch{}, "--replace")
		d.waitForLog("Standing by")
		next.waitForLog("Synced")
		d.endStandBy()
		d = next
	}
}

// question returns the address that the backend sees.
func question(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// answerTCP answers each byte of the first connection with the address of the client.
func answerTCP(l net.Listener) {
	c, err := l.Accept()
	for b := make([]byte, 1); err == nil; _, err = c.Write([]byte(c.RemoteAddr().String())) {
		if _, err = c.Read(b); err != nil {
			return
		}
	}
}

// answerUDP answers each datagram with the address of the client.
func answerUDP(c net.PacketConn) {
	for b := make([]byte, 100); ; {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte(from.String()), from) // the client asks again
	}
}
