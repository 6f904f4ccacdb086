//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// tour is one run of the demo.
type tour struct {
	*screen
	options
	*lab.Lab

	client    *lab.Host // a pod that asks
	pods      []pod     // that answer, in the order they are scaled up
	manifests manifests
	settings  *settings
	sluice    *daemon
	pids      []int    // of all processes that were started
	spaces    []string // the namespaces of all hosts

	facts    []fact
	failures []string
	broken   error // ends the tour
}

// pod is a backend.
type pod struct {
	*lab.Host
	label string
}

// fact is a line of the summary.
type fact struct{ what, result string }

// fail prints what did not go as it should.
func (t *tour) fail(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	t.failures = append(t.failures, why)
	fmt.Fprintf(t, "   %s\n", t.paint(red, "✗ "+why))
}

// learn notes a line for the summary.
func (t *tour) learn(what, format string, args ...any) {
	t.facts = append(t.facts, fact{what, fmt.Sprintf(format, args...)})
}

// show gives the tour in the lab.
func (t *tour) show(owner lab.T) {
	t.Lab = lab.New(owner, lab.Options{})
	t.populate()
	t.intro()
	for _, chapter := range []func() error{
		t.takeOver, t.look, t.balance, t.latency, t.promises, t.scale, t.refuse, t.udp,
		t.reload, t.crash, t.modes, t.repair, t.cleanup,
	} {
		if t.broken = chapter(); t.broken != nil {
			return
		}
	}
}

// Ports that the pods answer on.
const (
	webPort = 8080
	dnsPort = 5353
)

// populate makes the pods: three to begin with, two for scaling up, a client.
func (t *tour) populate() {
	t.client = t.Pod(t.NodeA, "10.180.0.100", "fd00:10:180::100")
	for _, p := range []struct {
		label string
		node  *lab.Host
		addrs [2]string
	}{
		{"A1", t.NodeA, [2]string{"10.180.0.1", "fd00:10:180::1"}},
		{"A2", t.NodeA, [2]string{"10.180.0.2", "fd00:10:180::2"}},
		{"B1", t.NodeB, [2]string{"10.180.1.1", "fd00:10:180:1::1"}},
		{"A3", t.NodeA, [2]string{"10.180.0.3", "fd00:10:180::3"}},
		{"B2", t.NodeB, [2]string{"10.180.1.2", "fd00:10:180:1::2"}},
	} {
		host := t.Pod(p.node, p.addrs[:]...)
		host.Serve(lab.TCP, webPort)
		host.Serve(lab.UDP, dnsPort)
		t.pods = append(t.pods, pod{host, p.label})
	}
	for _, h := range t.hosts() {
		if name, err := os.Readlink(h.NetNSPath()); err == nil {
			t.spaces = append(t.spaces, name)
		}
	}
}

func (t *tour) hosts() []*lab.Host {
	out := []*lab.Host{t.Outside, t.NodeA, t.NodeB, t.client}
	for _, p := range t.pods {
		out = append(out, p.Host)
	}
	return out
}

// addrs are the addresses of pods, in both families.
func addrs(pods []pod) []netip.Addr {
	var out []netip.Addr
	for _, p := range pods {
		out = append(out, p.Addrs()...)
	}
	return out
}

func (t *tour) intro() {
	fmt.Fprintf(t, "\n  %s\n  %s\n\n", t.paint(strong, "Sluice"),
		t.paint(faint, "A Kubernetes service proxy at work, in a little cluster of network namespaces."))
	for _, line := range []string{
		"outside ───┬─── node A   pods A1 A2 A3 and a client; sluice runs here",
		"           └─── node B   pods B1 B2",
	} {
		t.note("%s", line)
	}
}

// run starts the sluice process on node A.
func (t *tour) run(flags ...string) (synced, error) {
	argv := append([]string{
		t.options.sluice, "--config", t.settings.path(), "--reload-jitter", "0", "--manifests", t.manifests.dir, "--hostname-override", "node-a",
	}, flags...)
	d, err := startDaemon(t.NodeA, argv...)
	if err != nil {
		return synced{}, err
	}
	t.sluice = d
	t.pids = append(t.pids, d.cmd.Process.Pid)
	return d.ready()
}

// ways are all ways to a service from everywhere.
func (t *tour) ways() []path {
	at := netip.MustParseAddrPort
	return []path{
		{from: t.client, who: "pod", kind: "ClusterIP", to: at("10.96.0.10:80")},
		{from: t.client, who: "pod", kind: "ClusterIP", to: at("[fd00:10:96::10]:80")},
		{from: t.NodeA, who: "node", kind: "ClusterIP", to: at("10.96.0.10:80")},
		{from: t.NodeA, who: "node", kind: "ClusterIP", to: at("[fd00:10:96::10]:80")},
		{from: t.Outside, who: "outside", kind: "NodePort", to: at("192.168.0.2:30080")},
		{from: t.Outside, who: "outside", kind: "NodePort", to: at("[2001:db8::1]:30080")},
		{from: t.Outside, who: "outside", kind: "LoadBalancer", to: at("198.51.100.10:80")},
		{from: t.Outside, who: "outside", kind: "LoadBalancer", to: at("[2001:db8:198::10]:80")},
	}
}

// webWays are those of ways that lead to the Service web from two clients.
func (t *tour) webWays() []path {
	all := t.ways()
	return []path{all[0], all[1], all[4], all[5]}
}

func (p path) String() string {
	return fmt.Sprintf("%-9s%-14s%-23s", p.who, p.kind, p.to)
}

// bars draws how much each pod got.
func (t *tour) bars(counts []int, width int) string {
	most := 0
	if len(counts) > 0 {
		most = slices.Max(counts)
	}
	var parts []string
	for _, n := range counts {
		parts = append(parts, t.paint(green, bar(n, most, width))+fmt.Sprintf("%5s", count(n)))
	}
	return strings.Join(parts, "  ")
}

// pause lets traffic flow, long enough for a spread to be judged.
func pause() { time.Sleep(1200 * time.Millisecond) }

// moment lets traffic flow before and after something.
func moment() { time.Sleep(400 * time.Millisecond) }
