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

// other is an address of node A that is not its primary one.
const other = "192.168.1.2"

// A mounted ConfigMap changes, again and again, with traffic all the while.
func TestAChangedConfigurationTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.folder()
	file := w.config(dir, settings{})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{})
	d.settled(1)
	traffic := w.traffic()
	files := d.descriptors()
	node := lab.Way{From: w.lab.Outside, To: netip.AddrPortFrom(netip.MustParseAddr(other), nodePort)}

	for _, c := range []struct {
		name   string
		become settings
		holds  func()
	}{
		{"node ports at another address", settings{"nodePortAddresses": []string{"primary", other + "/32"}}, func() { w.serves(node, true) }},
		{"and not there any more", settings{}, func() { w.serves(node, false) }},
		{"all is masqueraded", settings{"nftables": object{"masqueradeAll": true}}, func() { w.masquerades(true) }},
		{"with another mark", settings{"nftables": object{"masqueradeAll": true, "masqueradeBit": 20}}, func() { w.marks("0x00100000") }},
		{"nothing is any more", settings{}, func() { w.masquerades(false); w.marks("0x00004000") }},
		{"the cluster is elsewhere", settings{"clusterCIDR": "10.99.0.0/16,fd00:10:99::/48"}, func() { w.masquerades(true) }},
		{"local is who comes by a veth", settings{
			"clusterCIDR": "10.99.0.0/16,fd00:10:99::/48", "detectLocalMode": "InterfaceNamePrefix",
			"detectLocal": object{"interfaceNamePrefix": "veth"},
		}, func() { w.masquerades(false) }},
		{"servers elsewhere", settings{"healthzBindAddress": "127.0.0.1:10366", "metricsBindAddress": "127.0.0.1:10349"}, func() {
			w.answers("127.0.0.1:10366", "/healthz", true)
			w.answers("127.0.0.1:10349", "/metrics", true)
			w.answers("127.0.0.1:10256", "/healthz", false)
			w.answers(metricsAt, "/metrics", false)
		}},
		{"servers where they were", settings{}, func() {
			w.answers("127.0.0.1:10256", "/healthz", true)
			w.answers(metricsAt, "/metrics", true)
		}},
		{"each write is logged", settings{"logging": object{"verbosity": 4}}, func() { w.logs(d, true) }},
		{"and not any more", settings{"logging": object{"verbosity": 2}}, func() { w.logs(d, false) }},
	} {
		before := w.taken(d)
		w.config(dir, c.become)
		w.eventually(func() error {
			if n := w.taken(d); n != before+1 {
				return fmt.Errorf("%s: %d configurations took effect, want %d:\n%s", c.name, n, before+1, d.log)
			}
			return nil
		})
		d.settled(1) // the process is the same
		c.holds()
		if err := traffic.Broken(); err != nil {
			w.Fatalf("%s: %v", c.name, err)
		}
	}
	w.badFile(d, dir)
	w.writesNothing(d, dir)
	w.hangup(d)
	if now := d.descriptors(); now > files+2 {
		w.Errorf("%d file descriptors are open, %d were before the reloads", now, files)
	}
	w.unharmed(traffic)
	w.same()
}

// While the program executes itself anew, also in another mode, clients of
// Services lose nothing, and no probe of a load balancer is refused or answered
// with an error.
func TestReloadsRefuseNoConnection(t *testing.T) {
	w := newWorld(t)
	objects := service("local", "172.30.0.81", "fd00:172:30::81", [2][]string{{"10.180.1.1"}, {"fd00:10:180::101"}})
	spec := objects[0].(object)["spec"].(object)
	spec["type"], spec["externalTrafficPolicy"], spec["healthCheckNodePort"] = "LoadBalancer", "Local", 31080
	for _, o := range objects[1:] {
		o.(object)["endpoints"].([]object)[0]["nodeName"] = "node-a"
	}
	w.write("local.json", objects)
	dir := w.folder()
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, settings{})}
	d := w.start(launch{})
	d.settled(2)
	w.answers("192.168.0.2:31080", "/", true)
	traffic, healthz, port := w.traffic(), w.probe("192.168.0.2:10256"), w.probe("192.168.0.2:31080")
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
			if n := w.taken(d); n != i+1 {
				return fmt.Errorf("%v: %d configurations took effect, want %d:\n%s", become, n, i+1, d.log)
			}
			return nil
		})
		d.settled(2)
		if err := traffic.Broken(); err != nil {
			w.Fatalf("%v: %v", become, err)
		}
	}
	w.eventually(func() error {
		if rules := w.rules(); strings.Contains(rules, "KUBE-SVC") {
			return fmt.Errorf("rules of the mode before are left:\n%.2000s", rules)
		}
		return nil
	})
	healthz.end()
	port.end()
	w.unharmed(traffic)
	w.same()
}

// taken counts the changed files that are in force, or were for a while.
func (w *world) taken(d *daemon) int {
	s, err := w.status()
	if err != nil {
		return d.log.count("Starting anew") // it is doing that
	}
	return s.Configuration.Reloads
}

// serves waits until a way is open, or refused.
func (w *world) serves(way lab.Way, want bool) {
	w.Helper()
	w.eventually(func() error {
		if r := way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: lab.Soon}); (r.Outcome == lab.Answered) != want {
			return fmt.Errorf("%s: %s, want an answer: %t", way, r, want)
		}
		return nil
	})
}

// answers waits until a server on node A answers, or is not there.
func (w *world) answers(address, path string, want bool) {
	w.Helper()
	w.eventually(func() error {
		code, _, err := w.get(address, path)
		if (err == nil) != want || want && code != 200 {
			return fmt.Errorf("%s%s: code %d, %w; want an answer: %t", address, path, code, err, want)
		}
		return nil
	})
}

// marks waits until packets are marked with this bit and no other.
func (w *world) marks(bit string) {
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

// logs makes sure that a write is logged, or not.
func (w *world) logs(d *daemon, want bool) {
	w.Helper()
	before := d.log.count("msg=Synced")
	for _, pods := range [][]int{{0}, {0, 1, 2}} {
		w.write("web.json", web(pods...))
		w.answeredBy(w.client, w.ways()[0].To, pods...)
	}
	if got := d.log.count("msg=Synced") - before; (got > 0) != want {
		w.Errorf("two writes are logged %d times, want that they are: %t\n%s", got, want, d.log)
	}
}

// badFile: what is wrong changes nothing and is said once, what is right again
// holds.
func (w *world) badFile(d *daemon, dir string) {
	w.Helper()
	rules := w.rules()
	w.swap(dir, strings.Replace(configuration(settings{"nftables": object{"masqueradeAll": true}}), clusterCIDRs, "10.180.0.0/61", 1))
	d.says("The configuration file is refused")
	for _, want := range []string{"10.180.0.0/61", "clusterCIDR", "config.conf"} {
		if d.log.count(want) == 0 {
			w.Errorf("the log does not say %q:\n%s", want, d.log)
		}
	}
	w.measures(`sluice_config_reloads_total{result="refused"}`, "1")
	if after := w.rules(); after != rules {
		w.Errorf("a configuration that is refused changed rules; before:\n%s\nafter:\n%s", rules, after)
	}
	w.masquerades(false)
	d.follows()
	w.config(dir, settings{"nftables": object{"masqueradeAll": true}})
	w.masquerades(true)
	w.config(dir, settings{})
	w.masquerades(false)
	d.once("The configuration file is refused")
}

// writesNothing: a change that concerns no rule writes none.
func (w *world) writesNothing(d *daemon, dir string) {
	w.Helper()
	before, rules := w.taken(d), w.rules()
	w.config(dir, settings{"clientConnection": object{"qps": 7}})
	w.eventually(func() error {
		if n := w.taken(d); n != before+1 {
			return fmt.Errorf("%d configurations took effect, want %d:\n%s", n, before+1, d.log)
		}
		return nil
	})
	s := d.settled(1)
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
	if out, _ := w.asks("status"); !strings.Contains(out, fmt.Sprintf("(reload %d of this process)", before+1)) {
		w.Errorf("sluice status does not count the reload:\n%s", out)
	}
	w.measures(`sluice_config_reloads_total{result="ok"}`, strconv.Itoa(before+1))
}

// hangup: a signal has everything compared, and the file read.
func (w *world) hangup(d *daemon) {
	w.Helper()
	before := w.metric(`sluice_comparisons_total{cause="request"}`)
	d.signal(syscall.SIGHUP)
	w.eventually(func() error {
		if after := w.metric(`sluice_comparisons_total{cause="request"}`); after == before {
			return fmt.Errorf("comparisons because of a request are %q still", after)
		}
		return nil
	})
	w.must(os.Remove(filepath.Join(d.w.linked(), "config.conf")))
	d.signal(syscall.SIGHUP)
	w.measures(`sluice_config_reloads_total{result="refused"}`, "2")
	d.follows()
}

// linked is the folder of the configuration file.
func (w *world) linked() string {
	for _, a := range w.args {
		if file, ok := strings.CutPrefix(a, "--config="); ok {
			return filepath.Dir(file)
		}
	}
	return ""
}

// probes are health checks of a load balancer, each with a connection of its own.
type probes struct {
	w       *world
	address string
	stop    chan struct{}
	running sync.WaitGroup
	asked   int
	failed  []string
}

// probe asks a health port on node A over and over until end.
func (w *world) probe(address string) *probes {
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
			p.asked++
			if err != nil || code != http.StatusOK {
				p.failed = append(p.failed, fmt.Sprintf("at %s, after %v: %d %s %v", began.Format(time.TimeOnly+".000"), time.Since(began), code, body, err))
			}
		}
	})
	w.Cleanup(p.end)
	return p
}

// end stops asking. No probe may have been refused or answered with an error.
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
	p.w.Logf("%d probes of %s, %d failed", p.asked, p.address, len(p.failed))
}
