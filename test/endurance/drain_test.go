//go:build linux

package endurance

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// drainPort is where pods of the node ask.
const drainPort = 10261

// named gives the endpoints names of pods on the node, and lets one of them terminate; -1: none.
func named(objects []any, terminating int) []any {
	for _, o := range objects[1:] {
		for i, e := range o.(object)["endpoints"].([]object) {
			e["nodeName"] = "node-a"
			e["targetRef"] = object{"kind": "Pod", "namespace": "default", "name": fmt.Sprint("web-", i)}
			e["conditions"] = object{"ready": i != terminating, "serving": true, "terminating": i == terminating}
		}
	}
	return objects
}

// draining is a daemon with the endpoint, three pods, and clients.
type draining struct {
	*testEnv
	daemon *daemon
	to     netip.AddrPort
}

func newDraining(t *testing.T, mode string) *draining {
	t.Helper()
	w := newTestEnvFor(t, mode)
	w.args = append(w.args, fmt.Sprintf("--drain-bind-address=0.0.0.0:%d", drainPort))
	e := &draining{testEnv: w, to: netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)}
	w.write("web.json", named(web(0, 1, 2), -1))
	e.daemon = w.start(launch{})
	e.daemon.waitSynced(1)
	if mode == "ebpf" {
		e.awaitPod(e.bpf, e.client)
	}
	return e
}

// ask sends the request of a hook.
func (e *draining) ask(from *lab.Host, wait string) (status int, err error) {
	err = from.Do(func() error {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(e.lab.NodeA.Addr4(), drainPort).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprintf(conn, "GET /drain?wait=%s HTTP/1.0\r\n\r\n", wait); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		status = answer.StatusCode
		return answer.Body.Close()
	})
	return status, err
}

// A wait ends with what is left when time is up, and soon after the last connection has ended. Only pods are answered.
func TestDrain(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "ebpf", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := newDraining(t, mode)
			for _, to := range []string{webIP4, webIP6} {
				e.waitAnsweredBy(e.client, netip.AddrPortFrom(netip.MustParseAddr(to), 80), 0, 1, 2)
			}
			flow := e.hold(2)
			out, status := e.runSluice("drain", "default/web-2", "--wait", "3s")
			if want := "default/web-2 still has 1 connection after 3"; status != 3 || !strings.Contains(out, want) ||
				!strings.Contains(out, e.pods[2].Addr4().String()+":80") {
				t.Errorf("drain exits with %d, want 3 and %q:\n%s", status, want, out)
			}
			if mode == "ebpf" && strings.Contains(out, webIP4) {
				t.Errorf("the connection was decided by packets:\n%s", out)
			}
			waiting := make(chan string, 1)
			go func() {
				out, status := e.runSluice("drain", e.pods[2].Addr4().String(), "--wait=1m")
				waiting <- fmt.Sprint(status, " ", out)
			}()
			e.eventually(func() error {
				if out, _ := e.runSluice("get", "draining"); !strings.Contains(out, "default/web-2  1 ") {
					return fmt.Errorf("get draining prints\n%s", out)
				}
				return nil
			})
			flow.Close()
			if got, want := <-waiting, "0 default/web-2 is drained after "; !strings.HasPrefix(got, want) {
				t.Errorf("drain prints %q, want %q", got, want)
			}
			if status, err := e.ask(e.pods[2], "20s"); status != http.StatusOK || err != nil {
				t.Errorf("the pod gets %d, %v", status, err)
			}
			if status, err := e.ask(e.lab.Outside, "20s"); status != http.StatusForbidden || err != nil {
				t.Errorf("a client outside gets %d, %v", status, err)
			}
			out, status = e.runSluice("drain", "default/other")
			if status != 1 || !strings.Contains(out, `no pod "default/other"`) {
				t.Errorf("drain of an unknown pod exits with %d:\n%s", status, out)
			}
		})
	}
}

// hold returns an open connection through the Service to a pod.
func (e *draining) hold(pod int) *lab.Flow {
	e.Helper()
	for {
		flow, result := e.client.Open(lab.Probe{Protocol: lab.TCP, To: e.to})
		if result.Backend.Addr() == e.pods[pod].Addr4() {
			return flow
		}
		flow.Close()
	}
}

// Pods that wait before they stop lose no request, without any sleep.
func TestRollOutsWithHooksLoseNothing(t *testing.T) {
	e := newDraining(t, "nftables")
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var asked, lost atomic.Int64
	for _, from := range []*lab.Host{e.client, e.lab.Outside} {
		to := e.to
		if from == e.lab.Outside {
			to = netip.AddrPortFrom(e.lab.NodeA.Addr4(), nodePort)
		}
		for range 4 {
			clients.Go(func() {
				for ctx.Err() == nil {
					asked.Add(1)
					if r := from.Try(lab.Probe{Protocol: lab.TCP, To: to, Timeout: 30 * time.Second}); r.Outcome != lab.Answered {
						lost.Add(1)
						t.Errorf("%s: %s", from.Name(), r)
					}
					time.Sleep(pace)
				}
			})
		}
	}
	for range 2 {
		for _, pod := range []int{0, 2} { // those on this node
			e.write("web.json", named(web(0, 1, 2), pod))
			if status, err := e.ask(e.pods[pod], "1m"); status != http.StatusOK || err != nil {
				t.Errorf("pod %d gets %d, %v", pod, status, err)
			}
			e.pods[pod].MustRun("nft", "add table inet stopped { chain in { type filter hook input priority 0; "+
				"tcp dport 80 reject with tcp reset; }; }")
			e.daemon.waitSynced(1)
			e.pods[pod].MustRun("nft", "delete", "table", "inet", "stopped")
			e.write("web.json", named(web(0, 1, 2), -1))
		}
	}
	stop()
	clients.Wait()
	t.Logf("%d of %d requests were lost", lost.Load(), asked.Load())
}
