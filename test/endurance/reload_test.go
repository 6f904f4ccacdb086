//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// other is an address of node A that is not its primary one.
const other = "192.168.1.2"

// A mounted ConfigMap changes, again and again, with traffic all the while.
func TestAChangedConfigurationHoldsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.folder()
	file := w.config(dir, settings{})
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + file}
	d := w.start(launch{})
	d.settled(1)
	traffic := w.traffic()
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
				return fmt.Errorf("%s: %d configurations were taken over, want %d:\n%s", c.name, n, before+1, d.log)
			}
			return nil
		})
		c.holds()
		if err := traffic.Broken(); err != nil {
			w.Fatalf("%s: %v", c.name, err)
		}
	}
	w.badFile(d, dir)
	w.restartDue(d, dir)
	w.hangup(d)
	w.unharmed(traffic)
	w.same()
}

func (w *world) taken(d *daemon) int {
	return d.log.count("The configuration file was taken over") + d.log.count("The configuration file is accepted again")
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

// restartDue: what needs a restart is said once and shown, and the rest holds.
func (w *world) restartDue(d *daemon, dir string) {
	w.Helper()
	w.measures("sluice_restart_due", "0")
	slow := object{"qps": 7}
	w.config(dir, settings{"clientConnection": slow})
	w.measures("sluice_restart_due", "1")
	w.config(dir, settings{"clientConnection": slow, "nftables": object{"masqueradeAll": true}})
	w.masquerades(true)
	w.measures("sluice_restart_due", "1")
	if out, _ := w.asks("status"); !strings.Contains(out, "restart") {
		w.Errorf("sluice status does not say that a restart is due:\n%s", out)
	}
	d.once("The configuration file has changes that need a restart")
	w.config(dir, settings{})
	w.measures("sluice_restart_due", "0")
	w.masquerades(false)
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
