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
)

// patience is how long what must happen may take; pace is that of traffic.
const (
	patience = time.Minute
	pace     = 20 * time.Millisecond
)

// What clients use of the Service "web".
const (
	webIP4, webIP6 = "172.30.0.80", "fd00:172:30::80"
	nodePort       = 30080
	clusterCIDRs   = "10.180.0.0/16,fd00:10:180::/48"
)

// world is a lab with three backends and a client, all for one test, and a
// folder of manifests.
type world struct {
	*testing.T
	lab    *lab.Lab
	client *lab.Host    // a pod on node A
	pods   [3]*lab.Host // on node A, B and A
	dir    string       // of manifests
	args   []string     // of Sluice
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l := lab.New(t, lab.Options{Timeout: time.Second})
	client, pods := harness.Pods(l, 3)
	w := &world{T: t, lab: l, client: client, pods: [3]*lab.Host(pods)}
	w.dir = w.folder()
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--cluster-cidr=" + clusterCIDRs}
	w.write("web.json", web(0, 1, 2))
	return w
}

// folder makes one that goes with this process, if not before. /run is its own.
func (w *world) folder() string {
	w.Helper()
	dir, err := os.MkdirTemp("/run", "endurance-")
	w.must(err)
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually tries until there is no error.
func (w *world) eventually(try func() error) {
	w.Helper()
	harness.Eventually(w, patience, try)
}

// write replaces a file of the manifests as a whole.
func (w *world) write(name string, objects []any) {
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

// web is the Service that clients use, with these of the pods behind it.
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

// many are n Services, which have three or four endpoints that do not answer. In
// the next generation all are others, and where there were three there are four.
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

// ways are from a pod, from the node itself and from outside.
func (w *world) ways() []lab.Way {
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

// traffic begins on all ways.
func (w *world) traffic() *lab.Steady {
	w.Helper()
	return lab.StartSteady(w, pace, w.ways()...)
}

// unharmed ends traffic, of which nothing may have broken.
func (w *world) unharmed(s *lab.Steady) {
	w.Helper()
	if err := s.End(); err != nil {
		w.Errorf("traffic broke: %v", err)
	}
	w.Logf("traffic: %s", s)
}

// answeredBy waits until a Service is answered by these pods and no other: so
// often that it is no chance.
func (w *world) answeredBy(from *lab.Host, to netip.AddrPort, pods ...int) {
	w.Helper()
	w.eventually(func() error {
		var seen []int
		for range 60 {
			r := from.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: 900 * time.Millisecond})
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

// rules are what nf_tables holds on node A.
func (w *world) rules() string {
	w.Helper()
	return w.lab.NodeA.MustRun("nft", "--stateless", "list", "ruleset")
}

// get reads a page of a server on node A.
func (w *world) get(address, path string) (code int, body string, err error) {
	code, text, err := harness.Get(w.lab.NodeA, 5*time.Second, "http://"+address+path)
	return code, string(text), err
}

// metricsAt is where metrics are unless a test says otherwise.
const metricsAt = "127.0.0.1:10249"

// metric reads a series, named as in the exposition; "" if there is none.
func (w *world) metric(series string) string {
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

// measures waits until a series has a value.
func (w *world) measures(series, want string) {
	w.Helper()
	w.eventually(func() error {
		if got := w.metric(series); got != want {
			return fmt.Errorf("%s is %q, want %q", series, got, want)
		}
		return nil
	})
}
