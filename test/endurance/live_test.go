//go:build linux

package endurance

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// sockets is an environment in which the daemon changes from and to mode ebpf.
type sockets struct {
	*testEnv
	d      *daemon
	folder string // the folder of the configuration
	n      int    // changes so far
}

func newSockets(t *testing.T, first string) *sockets {
	t.Helper()
	kerneltest.NeedPrograms(t)
	w := newTestEnvIn(t, lab.Options{Cgroups: true})
	w.bpf = filepath.Join(lab.BPFFS(t), "sluice")
	s := &sockets{testEnv: w, folder: w.tempDir()}
	for _, pod := range w.pods {
		pod.Serve(lab.UDP, dnsPort)
	}
	w.write("web.json", withUDP(web(0, 1, 2)))
	w.must(lab.HintIptables(w.lab.NodeA, "nft"))
	w.args = []string{
		"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(s.folder, settings{"mode": first}),
		"--bpf-dir=" + s.bpf, "--cgroup-root=" + w.lab.NodeA.Cgroup(),
	}
	s.d = w.start(launch{})
	s.d.waitSynced(1)
	if first == "ebpf" {
		s.awaitPod(s.bpf, w.client)
	}
	return s
}

// awaitPod waits until mode ebpf, with its maps in a folder, decides for the sockets of a pod.
func (w *testEnv) awaitPod(dir string, pod *lab.Host) {
	w.Helper()
	w.eventually(func() error { return harness.Known(dir, pod) })
}

// withUDP adds a UDP port to a Service and its EndpointSlices.
func withUDP(objects []any) []any {
	more := object{"name": "dns", "port": dnsPort, "protocol": "UDP"}
	for _, o := range objects {
		in := o.(object)
		if spec, is := in["spec"].(object); is {
			in = spec
		}
		ports := slices.Clone(in["ports"].([]object))
		first := object{"name": "web"}
		maps.Copy(first, ports[0])
		in["ports"] = []object{first, more}
	}
	return objects
}

// change changes the mode, and verifies that nothing of the mode before is left.
func (s *sockets) change(mode string) {
	s.Helper()
	s.n++
	s.config(s.folder, settings{"mode": mode})
	s.eventually(func() error {
		if got := s.reloads(s.d); got != s.n {
			return fmt.Errorf("%d configurations took effect, want %d:\n%s", got, s.n, s.d.log)
		}
		return nil
	})
	s.d.waitSynced(1)
	if mode == "ebpf" {
		s.awaitPod(s.bpf, s.client)
		if held := s.held(); len(held) == 0 {
			s.Errorf("in mode ebpf the daemon has no maps open")
		}
		return
	}
	s.eventually(func() error {
		if held := s.held(); len(held) > 0 {
			return fmt.Errorf("in mode %s the daemon has open: %v", mode, held)
		}
		if _, err := os.Stat(s.bpf); !os.IsNotExist(err) {
			return fmt.Errorf("in mode %s there is %s: %w", mode, s.bpf, err)
		}
		return nil
	})
}

// held returns the maps, programs and links that the daemon has open. With those that are pinned these are all: the
// kernel removes others.
func (s *sockets) held() (all []string) {
	s.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.d.PID)
	list, err := os.ReadDir(dir)
	s.must(err)
	for _, e := range list {
		// The file may be closed meanwhile.
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(to, "bpf") {
			all = append(all, to)
		}
	}
	return all
}

// atSockets returns how many connections were decided at sockets since mode ebpf began.
func (s *sockets) atSockets() (sum int) {
	s.Helper()
	_, body, err := s.get(metricsAt, "/metrics")
	s.must(err)
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(series, "sluice_ebpf_connections_total{") {
			n, err := strconv.ParseFloat(value, 64)
			s.must(err)
			sum += int(n)
		}
	}
	return sum
}

// requests are questions on sockets that stay open, of which none may fail.
type requests struct {
	wait   sync.WaitGroup
	over   chan struct{}
	count  atomic.Int64
	mu     sync.Mutex
	failed []string
}

// keepAsking opens a socket and asks on it until end is called.
func (r *requests) keepAsking(w *testEnv, from *lab.Host, p lab.Probe) {
	w.Helper()
	p.Timeout = timeout
	flow, result := from.Open(p)
	if flow == nil {
		w.Fatalf("%s to %s: %s", from.Name(), p.To, result)
	}
	r.wait.Go(func() {
		defer flow.Close()
		r.ask(from.Name(), flow)
	})
}

// ask asks until end is called. A lost datagram has no answer within the timeout.
func (r *requests) ask(name string, flow *lab.Flow) {
	for {
		select {
		case <-r.over:
			return
		case <-time.After(time.Millisecond):
		}
		got := flow.AskWithin([]byte("question"), 10*time.Second)
		if got.Outcome != lab.Answered || !got.Echoed || flow.Destroyed() > 0 {
			r.mu.Lock()
			r.failed = append(r.failed, fmt.Sprintf("%s at %s, %+v: %s; destroyed %d times",
				name, time.Now().Format(time.TimeOnly+".000"), flow.Probe(), got, flow.Destroyed()))
			r.mu.Unlock()
			return
		}
		r.count.Add(1)
	}
}

// end ends the requests and returns the failures.
func (r *requests) end() []string {
	close(r.over)
	r.wait.Wait()
	return r.failed
}

// longProbes are a long connection and both kinds of UDP sockets, to a Service in both families.
func longProbes() (all []lab.Probe) {
	for _, ip := range []string{webIP4, webIP6} {
		a := netip.MustParseAddr(ip)
		all = append(all,
			lab.Probe{Protocol: lab.TCP, To: netip.AddrPortFrom(a, 80)},
			lab.Probe{Protocol: lab.UDP, To: netip.AddrPortFrom(a, dnsPort)},
			lab.Probe{Protocol: lab.UDP, To: netip.AddrPortFrom(a, dnsPort), Unconnected: true})
	}
	return all
}

// While the daemon changes between mode ebpf and another one, several clients connect all the time, and sockets of
// the modes before stay open, UDP ones included. No connection, and no request on any of them, is lost.
func TestModesChangeLive(t *testing.T) {
	for name, modes := range map[string][]string{
		"nftables": {"nftables", "ebpf", "nftables", "ebpf", "nftables"},
		"iptables": {"ebpf", "iptables", "ebpf"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSockets(t, modes[0])
			ways := s.ways()
			traffic := lab.StartSteady(s, 2*time.Millisecond, append(append(ways, ways...), ways[:3]...)...)
			asked := &requests{over: make(chan struct{})}
			for _, mode := range modes[1:] {
				for _, p := range longProbes() { // of each mode
					asked.keepAsking(s.testEnv, s.client, p)
					asked.keepAsking(s.testEnv, s.lab.NodeA, p)
				}
				traffic.Await(300)
				before := s.atSockets()
				s.change(mode)
				traffic.Await(300)
				if n := s.atSockets(); mode == "ebpf" && n <= before {
					t.Errorf("%d connections were decided at sockets after %d", n, before)
				}
				s.checkDiff()
			}
			s.checkTraffic(traffic)
			for _, failure := range asked.end() {
				t.Errorf("a request failed: %s", failure)
			}
			t.Logf("%d requests on sockets that stayed open", asked.count.Load())
			if t.Failed() {
				t.Logf("the log:\n%s", s.d.log)
			}
		})
	}
}
