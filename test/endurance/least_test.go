//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// In mode nftables a Service with least connections sends new connections to the pod that has none. The slots that it
// moves are no edits by other programs, and a restart keeps them.
func TestLeastConnectionsOfPackets(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	objects := web(0, 1, 2)
	objects[0].(object)["metadata"].(object)["annotations"] = object{annotationScheduler: "lc"}
	w.write("web.json", objects)
	w.args = append(w.args, "--proxy-mode=nftables")
	d := w.start(launch{})
	d.waitSynced(1)
	for _, to := range []string{webIP4, webIP6} {
		const busy, idle = 4, 2
		flows := w.occupy(netip.MustParseAddr(to), busy, idle)
		w.gets(to, idle, dials*3/4, dials)
		w.checkDiff()
		out, status := w.runSluice("explain", w.client.Addr4().String(), webIP4+":80")
		if !strings.Contains(out, "more to those with few connections for their weight") {
			t.Errorf("explain exits with %d:\n%s", status, out)
		}
		d.stop()
		d = w.start(launch{})
		d.waitSynced(1)
		w.gets(to, idle, dials*3/4, dials)
		for _, f := range flows {
			f.Close()
		}
		w.gets(to, idle, dials/6, dials/2)
	}
	if lines := d.log.Lines("Another program"); len(lines) > 0 {
		t.Errorf("the log says %q", lines)
	}
}

// occupy opens connections until all pods except one have some. It keeps none to that pod.
func (w *testEnv) occupy(to netip.Addr, each, idle int) (flows []*lab.Flow) {
	w.Helper()
	for count := [3]int{}; count[(idle+1)%3] < each || count[(idle+2)%3] < each; {
		f, r := w.client.Open(lab.Probe{Protocol: lab.TCP, To: netip.AddrPortFrom(to, 80)})
		i := w.pod(r)
		if i == idle || count[i] == each {
			f.Close()
			continue
		}
		count[i]++
		flows = append(flows, f)
	}
	return flows
}

// pod returns the index of the pod that answered.
func (w *testEnv) pod(r lab.Result) int {
	w.Helper()
	for i, pod := range w.pods {
		if r.Outcome == lab.Answered && r.Backend.Addr() == pod.Addr(r.Backend.Addr()) {
			return i
		}
	}
	w.Fatalf("a connection: %s", r)
	return 0
}

// dials is how many connections gets makes.
const dials = 60

// gets waits until a pod gets a number of connections.
func (w *testEnv) gets(to string, pod, least, most int) {
	w.Helper()
	w.eventually(func() error {
		var count [3]int
		for range dials {
			count[w.pod(w.client.Dial(lab.TCP, netip.AddrPortFrom(netip.MustParseAddr(to), 80)))]++
		}
		if n := count[pod]; n < least || n > most {
			time.Sleep(time.Second) // otherwise conntrack has ever more connections to list
			return fmt.Errorf("the pods get %v of %d connections, want pod %d to get %d to %d", count, dials, pod, least, most)
		}
		return nil
	})
}
