//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// timeout bounds the wait for an expected event; pace is the interval of test connections.
const (
	timeout = time.Minute
	pace    = 20 * time.Millisecond
)

// Addresses of Service web.
const (
	webIP4, webIP6 = "172.30.0.80", "fd00:172:30::80"
	nodePort       = 30080
	clusterCIDRs   = "10.180.0.0/16,fd00:10:180::/48"
)

// testEnv is a lab for one test, with three backends, a client and a folder of manifests.
type testEnv struct {
	*testing.T
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [3]*lab.Host // on node A, B and A
	dir    string       // the folder of manifests
	args   []string     // of Sluice
	bpf    string       // --bpf-dir, if args has one
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	return newTestEnvIn(t, lab.Options{})
}

func newTestEnvIn(t *testing.T, o lab.Options) *testEnv {
	t.Helper()
	o.Timeout = time.Second
	l := lab.New(t, o)
	client, pods := harness.Pods(l, 3)
	w := &testEnv{T: t, lab: l, client: client, pods: [3]*lab.Host(pods)}
	w.dir = w.tempDir()
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--cluster-cidr=" + clusterCIDRs}
	w.write("web.json", web(0, 1, 2))
	return w
}

// tempDir creates a folder that is removed after the test. Each test process has its own /run.
func (w *testEnv) tempDir() string {
	w.Helper()
	dir, err := os.MkdirTemp("/run", "endurance-")
	w.must(err)
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (w *testEnv) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually calls try until it returns no error.
func (w *testEnv) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, timeout, try)
}

// write replaces a manifest atomically.
func (w *testEnv) write(name string, objects []any) {
	w.Helper()
	w.must(replace(filepath.Join(w.dir, name), objects))
}

func replace(name string, objects []any) error {
	var text []byte
	for _, o := range objects {
		text = append(text, harness.Manifest([]object{o.(object)})...)
	}
	return harness.Replace(name, text)
}

type object = harness.Object

// web is the Service that clients use, with the given pods as endpoints.
func web(pods ...int) []any {
	ips := [2][]string{}
	for _, i := range pods {
		a := harness.PodAddr(i)
		ips[0], ips[1] = append(ips[0], a.String()), append(ips[1], lab.Analog(a).String())
	}
	objects := service("web", webIP4, webIP6, ips)
	spec := objects[0].(object)["spec"].(object)
	spec["type"] = "NodePort"
	spec["ports"] = []object{{"port": 80, "nodePort": nodePort}}
	return objects
}

// many are n Services with three or four endpoints each, which do not answer. The next
// generation has other endpoints, and four instead of three or three instead of four.
func many(n, generation int) []any {
	var all []any
	for i := range n {
		v4 := netip.AddrFrom4([4]byte{172, 30, byte(1 + i/250), byte(1 + i%250)})
		ips := [2][]string{}
		for j := range 3 + (i+generation)%2 {
			a := netip.AddrFrom4([4]byte{10, byte(181 + generation), byte(i / 250), byte(1 + i%250)})
			b := a.As4()
			b[2] += byte(j * 48)
			a = netip.AddrFrom4(b)
			ips[0], ips[1] = append(ips[0], a.String()), append(ips[1], lab.Analog(a).String())
		}
		all = append(all, service(fmt.Sprintf("many-%d", i), v4.String(), lab.Analog(v4).String(), ips)...)
	}
	return all
}

// service returns a Service and its EndpointSlices, one for each family.
func service(name, ip4, ip6 string, endpoints [2][]string) []any {
	ports := []object{{"port": 80}}
	return []any{
		harness.Service(name, object{"clusterIP": ip4, "clusterIPs": []string{ip4, ip6}, "ports": ports}),
		harness.EndpointSlice(name, "IPv4", ports, endpoints[0]...),
		harness.EndpointSlice(name, "IPv6", ports, endpoints[1]...),
	}
}

// ways are connections from a pod, from the node and from outside.
func (w *testEnv) ways() []lab.Way {
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	return []lab.Way{
		{From: w.client, To: at(webIP4, 80)},
		{From: w.client, To: at(webIP6, 80)},
		{From: w.lab.NodeA, To: at(webIP4, 80)},
		{From: w.lab.Outside, To: at("192.168.0.2", nodePort)},
		{From: w.lab.Outside, To: at("2001:db8::1", nodePort)},
	}
}

// startTraffic starts continuous connections on all ways.
func (w *testEnv) startTraffic() *lab.Steady {
	w.Helper()
	return lab.StartSteady(w, pace, w.ways()...)
}

// checkTraffic ends continuous connections, of which none may have failed.
func (w *testEnv) checkTraffic(s *lab.Steady) {
	w.Helper()
	if err := s.End(); err != nil {
		w.Errorf("connections failed: %v", err)
	}
	w.Logf("traffic: %s", s)
}

// waitAnsweredBy waits until exactly these pods answer, over so many connections that chance is excluded.
func (w *testEnv) waitAnsweredBy(from *lab.Host, to netip.AddrPort, pods ...int) {
	w.Helper()
	w.eventually(func() error {
		var seen []int
		for range 60 {
			r := from.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: machine.Scale(900 * time.Millisecond)})
			i := slices.IndexFunc(w.pods[:], func(h *lab.Host) bool { return r.Backend.Addr() == h.Addr(to.Addr()) })
			if r.Outcome != lab.Answered || !slices.Contains(pods, i) {
				return fmt.Errorf("%s: %s, want one of the pods %v", to, r, pods)
			}
			if !slices.Contains(seen, i) {
				seen = append(seen, i)
			}
		}
		if len(seen) < len(pods) {
			return fmt.Errorf("%s: only %v of %v answered", to, seen, pods)
		}
		return nil
	})
}

// rules returns the nf_tables ruleset of node A.
func (w *testEnv) rules() string {
	w.Helper()
	return harness.WithoutCounts(w.lab.NodeA.MustRun("nft", "--stateless", "list", "ruleset"))
}

// get reads a page from a server on node A.
func (w *testEnv) get(address, path string) (code int, body string, err error) {
	code, text, err := harness.Get(w.lab.NodeA, machine.Scale(5*time.Second), "http://"+address+path)
	return code, string(text), err
}

// metricsAt is the default address of metrics.
const metricsAt = "127.0.0.1:10249"

// metric returns the value of a series, named as in the exposition; "" if there is none.
func (w *testEnv) metric(series string) string {
	w.Helper()
	_, body, err := w.get(metricsAt, "/metrics")
	w.must(err)
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// waitMetric waits until a series has a value.
func (w *testEnv) waitMetric(series, want string) {
	w.Helper()
	w.eventually(func() error {
		if got := w.metric(series); got != want {
			return fmt.Errorf("%s is %q, want %q", series, got, want)
		}
		return nil
	})
}
