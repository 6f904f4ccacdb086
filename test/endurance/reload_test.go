//go:build linux

package endurance

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// secondaryIP4 is an address of node A that is not its primary one.
const secondaryIP4 = "192.168.1.2"

// A mounted ConfigMap changes repeatedly while clients connect.
func TestAChangedConfigurationTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	dir := w.tempDir()
	file := w.config(dir, settings{})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{})
	d.waitSynced(1)
	traffic := w.startTraffic()
	files := d.openFiles()
	node := lab.Way{From: w.lab.Outside, To: netip.AddrPortFrom(netip.MustParseAddr(secondaryIP4), nodePort)}

	for _, c := range []struct {
		name   string
		become settings
		holds  func()
	}{
		{"NodePorts at another address", settings{"nodePortAddresses": []string{"primary", secondaryIP4 + "/32"}}, func() {
			w.waitServed(node, true)
		}},
		{"NodePorts at the primary address only", settings{}, func() { w.waitServed(node, false) }},
		{"masqueradeAll", settings{"nftables": object{"masqueradeAll": true}}, func() { w.waitMasquerade(true) }},
		{"masqueradeAll with another mark", settings{"nftables": object{"masqueradeAll": true, "masqueradeBit": 20}}, func() {
			w.waitMark("0x00100000")
		}},
		{"without masqueradeAll", settings{}, func() { w.waitMasquerade(false); w.waitMark("0x00004000") }},
		{"another clusterCIDR", settings{"clusterCIDR": "10.99.0.0/16,fd00:10:99::/48"}, func() { w.waitMasquerade(true) }},
		{"local clients detected by interface prefix", settings{
			"clusterCIDR": "10.99.0.0/16,fd00:10:99::/48", "detectLocalMode": "InterfaceNamePrefix",
			"detectLocal": object{"interfaceNamePrefix": "veth"},
		}, func() { w.waitMasquerade(false) }},
		{
			"servers at other ports",
			settings{"healthzBindAddress": "127.0.0.1:10366", "metricsBindAddress": "127.0.0.1:10349"},
			func() {
				w.waitServer("127.0.0.1:10366", "/healthz", true)
				w.waitServer("127.0.0.1:10349", "/metrics", true)
				w.waitServer("127.0.0.1:10256", "/healthz", false)
				w.waitServer(metricsAt, "/metrics", false)
			},
		},
		{"servers at the default ports", settings{}, func() {
			w.waitServer("127.0.0.1:10256", "/healthz", true)
			w.waitServer(metricsAt, "/metrics", true)
		}},
		{"verbosity 4", settings{"logging": object{"verbosity": 4}}, func() { w.checkWriteLog(d, true) }},
		{"verbosity 2", settings{"logging": object{"verbosity": 2}}, func() { w.checkWriteLog(d, false) }},
	} {
		before := w.reloads(d)
		w.config(dir, c.become)
		w.eventually(func() error {
			if n := w.reloads(d); n != before+1 {
				return fmt.Errorf("%s: %d configurations took effect, want %d:\n%s", c.name, n, before+1, d.log)
			}
			return nil
		})
		d.waitSynced(1) // the process is the same
		c.holds()
		if err := traffic.Broken(); err != nil {
			w.Fatalf("%s: %v", c.name, err)
		}
	}
	w.checkBadFile(d, dir)
	w.checkNoWrites(d, dir)
	w.checkSIGHUP(d)
	if now := d.openFiles(); now > files+2 {
		w.Errorf("%d file descriptors are open, %d were before the reloads", now, files)
	}
	w.checkTraffic(traffic)
	w.checkDiff()
}

// While the daemon executes its program again, even in another mode, no connection to a Service and no health check
// of a load balancer fails.
func TestReloadsRefuseNoConnection(t *testing.T) {
	w := newTestEnv(t)
	objects := service("local", "172.30.0.81", "fd00:172:30::81", [2][]string{{"10.180.1.1"}, {"fd00:10:180::101"}})
	spec := objects[0].(object)["spec"].(object)
	spec["type"], spec["externalTrafficPolicy"], spec["healthCheckNodePort"] = "LoadBalancer", "Local", 31080
	for _, o := range objects[1:] {
		o.(object)["endpoints"].([]object)[0]["nodeName"] = "node-a"
	}
	w.write("local.json", objects)
	dir := w.tempDir()
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, settings{})}
	d := w.start(launch{})
	d.waitSynced(2)
	w.waitServer("192.168.0.2:31080", "/", true)
	traffic, healthz, port := w.startTraffic(), w.startProbes("192.168.0.2:10256"), w.startProbes("192.168.0.2:31080")
	for i, become := range []settings{
		{"nftables": object{"masqueradeAll": true}},
		{},
		{"clientConnection": object{"qps": 7}},
		{"mode": "iptables"},
		{"mode": "iptables", "iptables": object{"masqueradeAll": true}},
		{"mode": "nftables"},
	} {
		w.config(dir, become)
		w.eventually(func() error {
			if n := w.reloads(d); n != i+1 {
				return fmt.Errorf("%v: %d configurations took effect, want %d:\n%s", become, n, i+1, d.log)
			}
			return nil
		})
		d.waitSynced(2)
		if err := traffic.Broken(); err != nil {
			w.Fatalf("%v: %v", become, err)
		}
	}
	w.eventually(func() error {
		if rules := w.rules(); strings.Contains(rules, "KUBE-SVC") {
			return fmt.Errorf("rules of the previous mode remain:\n%.2000s", rules)
		}
		return nil
	})
	healthz.end()
	port.end()
	w.checkTraffic(traffic)
	w.checkDiff()
}

// reloads counts the changed configurations that took effect.
func (w *testEnv) reloads(d *daemon) int {
	s, err := w.status()
	if err != nil {
		return d.log.count("Restarting in the same process") // it is reloading
	}
	return s.Configuration.Reloads
}

// waitServed waits until connections on a way succeed, or fail.
func (w *testEnv) waitServed(way lab.Way, want bool) {
	w.Helper()
	w.eventually(func() error {
		r := way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: lab.Soon})
		if (r.Outcome == lab.Answered) != want {
			return fmt.Errorf("%s: %s, want an answer: %t", way, r, want)
		}
		return nil
	})
}

// waitServer waits until a server on node A answers, or does not.
func (w *testEnv) waitServer(address, path string, want bool) {
	w.Helper()
	w.eventually(func() error {
		code, _, err := w.get(address, path)
		if (err == nil) != want || want && code != 200 {
			return fmt.Errorf("%s%s: code %d, %w; want an answer: %t", address, path, code, err, want)
		}
		return nil
	})
}

// waitMark waits until rules set this mark and no other.
func (w *testEnv) waitMark(bit string) {
	w.Helper()
	w.eventually(func() error {
		for _, b := range []string{"0x00004000", "0x00100000"} {
			if got := strings.Contains(w.rules(), b); got != (b == bit) {
				return fmt.Errorf("mark %s in the rules: %t\n%.3000s", b, got, w.rules())
			}
		}
		return nil
	})
}

// checkWriteLog verifies that writes are logged, or not.
func (w *testEnv) checkWriteLog(d *daemon, want bool) {
	w.Helper()
	before := d.log.count("msg=Synced")
	for _, pods := range [][]int{{0}, {0, 1, 2}} {
		w.write("web.json", web(pods...))
		w.waitAnsweredBy(w.client, w.ways()[0].To, pods...)
	}
	if got := d.log.count("msg=Synced") - before; (got > 0) != want {
		w.Errorf("two writes are logged %d times, want them logged: %t\n%s", got, want, d.log)
	}
}

// checkBadFile verifies that an invalid file is logged once and changes nothing, and that a
// valid one takes effect afterwards.
func (w *testEnv) checkBadFile(d *daemon, dir string) {
	w.Helper()
	rules := w.rules()
	w.replaceConfigMap(dir, strings.Replace(configuration(settings{"nftables": object{"masqueradeAll": true}}),
		clusterCIDRs, "10.180.0.0/61", 1))
	d.waitForLog("The changed configuration file is invalid")
	for _, want := range []string{"10.180.0.0/61", "clusterCIDR", "config.conf"} {
		if d.log.count(want) == 0 {
			w.Errorf("the log lacks %q:\n%s", want, d.log)
		}
	}
	w.waitMetric(`sluice_config_reloads_total{result="refused"}`, "1")
	if after := w.rules(); after != rules {
		w.Errorf("an invalid configuration changed rules; before:\n%s\nafter:\n%s", rules, after)
	}
	w.waitMasquerade(false)
	d.checkChanges()
	w.config(dir, settings{"nftables": object{"masqueradeAll": true}})
	w.waitMasquerade(true)
	w.config(dir, settings{})
	w.waitMasquerade(false)
	d.checkLoggedOnce("The changed configuration file is invalid")
}

// checkNoWrites verifies that a change without effect on rules writes none.
func (w *testEnv) checkNoWrites(d *daemon, dir string) {
	w.Helper()
	before, rules := w.reloads(d), w.rules()
	w.config(dir, settings{"clientConnection": object{"qps": 7}})
	w.eventually(func() error {
		if n := w.reloads(d); n != before+1 {
			return fmt.Errorf("%d configurations took effect, want %d:\n%s", n, before+1, d.log)
		}
		return nil
	})
	s := d.waitSynced(1)
	w.eventually(func() (err error) {
		if s, err = w.status(); err == nil && s.LastSync.At.IsZero() {
			err = errBehind
		}
		return err
	})
	if s.LastSync.Cause != "start" || s.LastSync.Steps != 0 || s.Adopted == 0 {
		w.Errorf("the first write after a reload is %+v, with %d entries adopted; want no steps", s.LastSync, s.Adopted)
	}
	if after := w.rules(); after != rules {
		w.Errorf("rules before:\n%s\nafter:\n%s", rules, after)
	}
	if out, _ := w.runSluice("status"); !strings.Contains(out, fmt.Sprintf("(reload %d of this process)", before+1)) {
		w.Errorf("sluice status does not count the reload:\n%s", out)
	}
	w.waitMetric(`sluice_config_reloads_total{result="ok"}`, strconv.Itoa(before+1))
}

// checkSIGHUP verifies that SIGHUP causes a comparison, and a read of the file.
func (w *testEnv) checkSIGHUP(d *daemon) {
	w.Helper()
	before := w.metric(`sluice_comparisons_total{cause="request"}`)
	d.signal(syscall.SIGHUP)
	w.eventually(func() error {
		if after := w.metric(`sluice_comparisons_total{cause="request"}`); after == before {
			return fmt.Errorf("comparisons with cause request are still %q", after)
		}
		return nil
	})
	w.must(os.Remove(filepath.Join(d.w.configDir(), "config.conf")))
	d.signal(syscall.SIGHUP)
	w.waitMetric(`sluice_config_reloads_total{result="refused"}`, "2")
	d.checkChanges()
}

// configDir returns the folder of the configuration file.
func (w *testEnv) configDir() string {
	for _, a := range w.args {
		if file, ok := strings.CutPrefix(a, "--config="); ok {
			return filepath.Dir(file)
		}
	}
	return ""
}

// probes are health checks of a load balancer, each with its own connection.
type probes struct {
	w       *testEnv
	address string
	stop    chan struct{}
	running sync.WaitGroup
	sent    int
	failed  []string
}

// startProbes sends requests to a health port on node A until end.
func (w *testEnv) startProbes(address string) *probes {
	w.Helper()
	p := &probes{w: w, address: address, stop: make(chan struct{})}
	p.running.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
			began := time.Now()
			code, body, err := w.get(address, "/healthz")
			p.sent++
			if err != nil || code != http.StatusOK {
				p.failed = append(p.failed, fmt.Sprintf("at %s, after %v: %d %s %v", began.Format(time.TimeOnly+".000"),
					time.Since(began), code, body, err))
			}
		}
	})
	w.Cleanup(p.end)
	return p
}

// end stops the probes, of which none may have failed.
func (p *probes) end() {
	select {
	case <-p.stop:
		return
	default:
	}
	close(p.stop)
	p.running.Wait()
	for _, f := range p.failed[:min(len(p.failed), 5)] {
		p.w.Errorf("a probe of %s failed: %s", p.address, f)
	}
	p.w.Logf("%d probes of %s, %d failed", p.sent, p.address, len(p.failed))
}
