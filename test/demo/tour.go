//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// tour is one run of the demo.
type tour struct {
	*screen
	options
	*lab.Lab

	client     *lab.Host // a pod without a server
	pods       []pod     // backends, in the order in which they are scaled up
	files      *files
	sluice     *harness.Process
	pids       []int    // of all processes
	namespaces []string // of all hosts

	facts    []fact
	failures []string
	err      error // the error that ended the tour
}

// pod is a backend.
type pod struct {
	*lab.Host
	label string
	web   *lab.Server
}

// fact is a line of the summary.
type fact struct{ name, result string }

// limit bounds each wait.
const limit = time.Minute

// errCannot marks errors of the machine, not of Sluice.
var errCannot = errors.New("the demo cannot run here")

// fail prints a failed check.
func (t *tour) fail(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	t.failures = append(t.failures, why)
	fmt.Fprintf(t, "   %s\n", t.paint(red, "✗ "+why))
}

// addFact adds a line to the summary.
func (t *tour) addFact(what, format string, args ...any) {
	t.facts = append(t.facts, fact{what, fmt.Sprintf(format, args...)})
}

// show runs the chapters in a lab.
func (t *tour) show(owner lab.T) {
	t.Lab = lab.New(owner, lab.Options{Cgroups: lab.HasCgroups()})
	t.populate()
	fmt.Fprintf(t, "\n  %s\n  %s\n\n", t.paint(strong, "Sluice"),
		t.paint(faint, "A Kubernetes service proxy at work, in a small cluster of network namespaces."))
	t.note("outside ───┬─── node A   pods A1 A2 A3 and a client; sluice runs here")
	t.note("           └─── node B   pods B1 B2")
	if t.files, t.err = newFiles(t.examples); t.err != nil {
		return
	}
	modes := t.modes()
	if t.err = t.announce(modes); t.err != nil {
		return
	}
	chapters := []func() error{
		t.takeOver, t.questions, t.balance, t.latency, t.features, t.scale, t.refuse, t.udp, t.reload, t.crash,
	}
	for _, m := range modes {
		chapters = append(chapters, func() error { return t.chapterOf(m) })
	}
	for _, chapter := range append(chapters, t.repair, t.leave) {
		if t.err = chapter(); t.err != nil {
			return
		}
	}
}

// Ports on which the pods answer.
const (
	webPort = 8080
	dnsPort = 5353
)

// populate creates the pods: three initial backends, two for scaling up, and a client.
func (t *tour) populate() {
	t.client = t.Pod(t.NodeA, "10.180.0.100", "fd00:10:180::100")
	hosts := []*lab.Host{t.Outside, t.NodeA, t.NodeB, t.client}
	for _, p := range []struct {
		label  string
		node   *lab.Host
		v4, v6 string
	}{
		{"A1", t.NodeA, "10.180.0.1", "fd00:10:180::1"},
		{"A2", t.NodeA, "10.180.0.2", "fd00:10:180::2"},
		{"B1", t.NodeB, "10.180.1.1", "fd00:10:180:1::1"},
		{"A3", t.NodeA, "10.180.0.3", "fd00:10:180::3"},
		{"B2", t.NodeB, "10.180.1.2", "fd00:10:180:1::2"},
	} {
		host := t.Pod(p.node, p.v4, p.v6)
		web := host.Serve(lab.TCP, webPort)
		host.Serve(lab.UDP, dnsPort)
		t.pods, hosts = append(t.pods, pod{host, p.label, web}), append(hosts, host)
	}
	for _, h := range hosts {
		if name, err := os.Readlink(h.NetNSPath()); err == nil {
			t.namespaces = append(t.namespaces, name)
		}
	}
}

// addrs returns the addresses of pods, in both families.
func addrs(pods []pod) []netip.Addr {
	var out []netip.Addr
	for _, p := range pods {
		out = append(out, p.Addrs()...)
	}
	return out
}

// ways returns all ways to Service web and the load balancer, which has the same pods.
func (t *tour) ways() []way {
	at := netip.MustParseAddrPort
	return []way{
		{from: t.client, client: "pod", kind: "ClusterIP", to: at("10.96.0.10:80")},
		{from: t.client, client: "pod", kind: "ClusterIP", to: at("[fd00:10:96::10]:80")},
		{from: t.NodeA, client: "node", kind: "ClusterIP", to: at("10.96.0.10:80")},
		{from: t.NodeA, client: "node", kind: "ClusterIP", to: at("[fd00:10:96::10]:80")},
		{from: t.Outside, client: "outside", kind: "NodePort", to: at("192.168.0.2:30080")},
		{from: t.Outside, client: "outside", kind: "NodePort", to: at("[2001:db8::1]:30080")},
		{from: t.Outside, client: "outside", kind: "LoadBalancer", to: at("198.51.100.10:80")},
		{from: t.Outside, client: "outside", kind: "LoadBalancer", to: at("[2001:db8:198::10]:80")},
	}
}

// webWays returns those ways to Service web that come from a pod and from outside.
func (t *tour) webWays() []way {
	all := t.ways()
	return []way{all[0], all[1], all[4], all[5]}
}

// synced is the first complete write of a process.
type synced struct {
	services, steps int
	took            time.Duration // from the start of the process
}

// start starts Sluice on node A and waits for its first complete write.
func (t *tour) start(flags ...string) (synced, error) {
	shown := append([]string{"sluice --config kube-proxy.conf --manifests examples/"}, flags...)
	t.command("%s", strings.Join(shown, " "))
	if slices.Contains(flags, "ebpf") {
		flags = append(flags, "--cgroup-root", t.NodeA.Cgroup())
	}
	cmd := exec.Command(t.options.sluice, append([]string{
		"--config", t.files.config, "--reload-jitter", "0", "--manifests", t.files.manifests, "--hostname-override", "node-a",
	}, flags...)...)
	var err error
	if t.sluice, err = harness.Start(t.NodeA, cmd); err != nil {
		return synced{}, err
	}
	t.pids = append(t.pids, t.sluice.PID)
	line, err := t.sluice.Logs(limit, "msg=Synced", "cause=start")
	return t.readSynced(line), err
}

func (t *tour) readSynced(line harness.Line) synced {
	services, _ := strconv.Atoi(line.Field("services")) // 0 if there is no line
	steps, _ := strconv.Atoi(line.Field("steps"))
	return synced{services, steps, line.Time.Sub(t.sluice.Began)}
}

// stop stops Sluice, and prints its warnings, except warnings about foreign edits: the demo makes these edits, and on
// a slow machine Sluice may report that another program keeps changing its rules.
func (t *tour) stop() (time.Duration, error) {
	took, err := t.sluice.Stop(unix.SIGTERM, limit)
	if err != nil {
		return 0, err
	}
	if err := t.sluice.Err(); err != nil {
		t.fail("sluice ended with an error when it was asked to stop: %v", err)
	}
	for _, line := range slices.Concat(t.sluice.Log.Lines("level=WARN"), t.sluice.Log.Lines("level=ERROR")) {
		if !strings.Contains(line.Text, "Another program changed") &&
			!strings.Contains(line.Text, "Another program keeps changing") {
			t.note("%s", clip("It had warned: "+line.Text))
		}
	}
	return took, nil
}

// ask runs a sluice command on node A and prints the lines of its output that begin with one of the
// words, or all lines if there are no words.
func (t *tour) ask(command string, words ...string) {
	t.command("sluice %s", command)
	out, err := t.NodeA.Run("", append([]string{t.options.sluice}, strings.Fields(command)...)...)
	if err != nil {
		t.fail("%v", err)
		return
	}
	shown := 0
	for line := range strings.Lines(out) {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(line, w) }) {
			continue
		}
		t.note("%s", clip(strings.TrimRight(line, "\n ")))
		shown++
	}
	if shown == 0 {
		t.fail("It printed no line that begins with %q:\n%s", words, out)
	}
	fmt.Fprintln(t)
}

// bars draws the share of each pod.
func (t *tour) bars(counts []int) string {
	var parts []string
	for _, n := range counts {
		parts = append(parts, t.paint(green, bar(n, slices.Max(counts)))+fmt.Sprintf("%5s", count(n)))
	}
	return strings.Join(parts, "  ")
}

// until makes requests until one has a wanted outcome, for at most limit.
func until(w way, wanted func(lab.Outcome) bool) lab.Result {
	for deadline := time.Now().Add(limit); ; {
		r := w.request()
		if wanted(r.Outcome) || time.Now().After(deadline) {
			return r
		}
	}
}

func answered(o lab.Outcome) bool { return o == lab.Answered }

// longPause waits long enough for traffic to check its balance.
func longPause() { time.Sleep(1200 * time.Millisecond) }

// shortPause waits for some traffic before and after an event.
func shortPause() { time.Sleep(400 * time.Millisecond) }
