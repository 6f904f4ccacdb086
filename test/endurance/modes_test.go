//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// A change of mode from and to userspace. Connections that the kernel forwards continue, and none is refused in the
// change to userspace; connections that the process forwards are reset. Nothing of the previous mode is left.
// Datagrams get lost for a moment only; the test prints how many.
func TestModesAroundUserspace(t *testing.T) {
	w := newTestEnv(t)
	w.write("dns.json", w.serveUDP())
	dir := w.tempDir()
	w.args = []string{
		"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, settings{"mode": "nftables"}),
	}
	d := w.start(launch{})
	d.waitSynced(2)
	forwarded := []*kept{w.keep(0), w.keep(1), w.keep(2)}
	var own *kept // that the process forwards
	for n, mode := range []string{"userspace", "iptables", "userspace", "nftables"} {
		if mode == "userspace" {
			traffic := w.startTraffic()
			w.changeMode(d, dir, n+1, mode)
			w.checkTraffic(traffic)
			own = w.keep(n % 3)
		} else {
			w.changeMode(d, dir, n+1, mode)
			if err := own.wait(); err == nil {
				t.Errorf("a connection of mode userspace continues in mode %s", mode)
			}
			w.checkUserspaceGone()
		}
		for i, k := range forwarded {
			if k.broken.Load() > 0 {
				t.Errorf("after the change to %s connection %d is broken:\n%s", mode, i, d.log)
			}
		}
		w.checkDiff()
	}
	for i, k := range forwarded {
		if err := k.end(); err != nil {
			t.Errorf("connection %d: %v\n%s", i, err, d.log)
		}
		k.close()
	}
}

// changeMode changes the mode by the configuration file, as change n, and checks how long clients of UDP get no answer.
func (w *testEnv) changeMode(d *daemon, dir string, n int, mode string) {
	w.Helper()
	clients := []*datagrams{w.sendDatagrams(w.client), w.sendDatagrams(w.lab.NodeA)}
	w.config(dir, settings{"mode": mode})
	w.eventually(func() error {
		if got := w.reloads(d); got != n {
			return fmt.Errorf("%d configurations took effect, want %d:\n%s", got, n, d.log)
		}
		return nil
	})
	if s := d.waitSynced(2); s.Mode.Name != mode {
		w.Fatalf("mode %v, want %s:\n%s", s.Mode, mode, d.log)
	}
	for _, c := range clients {
		c.end()
		w.Logf("to %s, from %s: %s", mode, c.from.Name(), c)
		for what, f := range map[string]*answers{"an open flow": &c.same, "new flows": &c.fresh} {
			if f.longest > machine.Scale(maxUDPGap) {
				w.Errorf("to %s, from %s: %s got no answer for %v, want at most %v",
					mode, c.from.Name(), what, f.longest, machine.Scale(maxUDPGap))
			}
		}
	}
}

// checkUserspaceGone verifies that nothing of mode userspace is left.
func (w *testEnv) checkUserspaceGone() {
	w.Helper()
	w.eventually(func() error {
		if rules := w.rules(); strings.Contains(rules, "KUBE-PORTALS") {
			return fmt.Errorf("rules of mode userspace remain:\n%.2000s", rules)
		}
		if addrs := w.lab.NodeA.MustRun("ip", "address", "show", "dev", "lo"); strings.Contains(addrs, "169.254.73.1") {
			return fmt.Errorf("the addresses of the sockets are left:\n%s", addrs)
		}
		return nil
	})
}

// maxUDPGap is how long clients of UDP may get no answer during a change of the mode, on a fast machine.
const maxUDPGap = 3 * time.Second

// Addresses of Service dns, and its port.
const dnsIP4, dnsIP6, dnsPort = "172.30.0.53", "fd00:172:30::53", 53

// serveUDP makes the pods answer datagrams, and returns the Service.
func (w *testEnv) serveUDP() []any {
	w.Helper()
	ips := [2][]string{}
	for i, pod := range w.pods {
		pod.Serve(lab.UDP, dnsPort)
		ips[0], ips[1] = append(ips[0], harness.PodAddr(i).String()), append(ips[1], lab.Analog(harness.PodAddr(i)).String())
	}
	objects := service("dns", dnsIP4, dnsIP6, ips)
	for i, o := range objects {
		ports := []object{{"port": dnsPort, "protocol": "UDP"}}
		if i == 0 {
			o.(object)["spec"].(object)["ports"] = ports
			continue
		}
		o.(object)["ports"] = ports
	}
	return objects
}

// datagrams are continuous traffic of a client by UDP, on one flow and on new ones.
type datagrams struct {
	from        *lab.Host
	same, fresh answers
	stop        chan struct{}
	wait        sync.WaitGroup
}

// answers are the outcomes of datagrams, each sent after the answer to the one before, or after its loss.
type answers struct {
	sent, lost int
	last       time.Time
	longest    time.Duration // between two answers
}

// String returns the numbers.
func (c *datagrams) String() string {
	text := func(a answers) string {
		return fmt.Sprintf("%d of %d lost, no answer for at most %v", a.lost, a.sent, a.longest.Round(time.Millisecond))
	}
	return "an open flow: " + text(c.same) + "; new flows: " + text(c.fresh)
}

// sendDatagrams starts the traffic of a client to Service dns.
func (w *testEnv) sendDatagrams(from *lab.Host) *datagrams {
	w.Helper()
	p := lab.Probe{
		Protocol: lab.UDP, To: netip.AddrPortFrom(netip.MustParseAddr(dnsIP4), dnsPort), Timeout: 100 * time.Millisecond,
	}
	flow, r := from.Open(p)
	if flow == nil {
		w.Fatalf("open a flow: %s", r)
	}
	c := &datagrams{from: from, stop: make(chan struct{})}
	w.Cleanup(flow.Close)
	c.wait.Go(func() { c.repeat(&c.same, func() lab.Result { return flow.Ask([]byte("x")) }) })
	c.wait.Go(func() { c.repeat(&c.fresh, func() lab.Result { return from.Try(p) }) })
	return c
}

func (c *datagrams) repeat(a *answers, ask func() lab.Result) {
	for a.last = time.Now(); ; time.Sleep(time.Millisecond) {
		select {
		case <-c.stop:
			a.longest = max(a.longest, time.Since(a.last))
			return
		default:
		}
		a.sent++
		if r := ask(); r.Outcome != lab.Answered {
			a.lost++
			continue
		}
		a.longest, a.last = max(a.longest, time.Since(a.last)), time.Now()
	}
}

func (c *datagrams) end() {
	close(c.stop)
	c.wait.Wait()
}
