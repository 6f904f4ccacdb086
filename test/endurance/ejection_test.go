//go:build linux

package endurance

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

const annotationEjection = "sluice-proxy.github.io/ejection"

// Pods that do not answer, and pods that refuse, leave the Service within seconds, and come back when they answer.
// A restart needs no new failures, and without the annotation all are in at once.
func TestEjection(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "ebpf", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := newEjecting(t, mode)
			for _, how := range []string{"drop", "reject with tcp reset"} {
				e.stopPod(how)
				load := e.startLoad()
				e.waitAnsweredBy(e.client, e.to, 0, 1)
				e.waitStanding("ejected for ")
				load()
				e.kill()
				e.daemon = e.start(launch{})
				e.daemon.waitSynced(1)
				e.waitStanding("ejected for ", "on trial for ")
				e.checkDiff()

				e.startPod()
				load = e.startLoad()
				e.waitWhole()
				load()
				e.waitAnsweredBy(e.client, e.to, 0, 1, 2)
			}
			e.stopPod("drop")
			load := e.startLoad()
			e.waitStanding("ejected for ")
			load()
			e.write("web.json", web(0, 1, 2))
			e.waitWhole()
			e.checkDiff()
		})
	}
}

// ejecting is a Service that ejects, with two clients.
type ejecting struct {
	*testEnv
	daemon  *daemon
	to      netip.AddrPort
	clients []*lab.Host
}

func newEjecting(t *testing.T, mode string) *ejecting {
	t.Helper()
	w := newTestEnvFor(t, mode)
	e := &ejecting{testEnv: w, to: netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)}
	e.clients = []*lab.Host{w.client, w.lab.Pod(w.lab.NodeA, "10.180.0.77", "fd00:10:180::77")}
	objects := web(0, 1, 2)
	objects[0].(object)["metadata"].(object)["annotations"] = object{annotationEjection: "on"}
	w.write("web.json", objects)
	e.daemon = w.start(launch{})
	e.daemon.waitSynced(1)
	return e
}

// newTestEnvFor returns a testEnv whose daemons begin in a mode.
func newTestEnvFor(t *testing.T, mode string) *testEnv {
	t.Helper()
	w := newTestEnvIn(t, lab.Options{Cgroups: mode == "ebpf"})
	w.args = append(w.args, "--proxy-mode="+mode)
	w.must(lab.HintIptables(w.lab.NodeA, "nft"))
	if mode == "ebpf" {
		kerneltest.NeedPrograms(t)
		w.bpf = filepath.Join(lab.BPFFS(t), "sluice")
		w.args = append(w.args, "--bpf-dir="+w.bpf, "--cgroup-root="+w.lab.NodeA.Cgroup())
	}
	return w
}

func (e *ejecting) kill() { e.daemon.kill() }

// stopPod makes the last pod drop or refuse connections.
func (e *ejecting) stopPod(how string) {
	e.Helper()
	chain := "chain in { type filter hook input priority 0; tcp flags & (syn|ack) == syn " + how + "; };"
	_, err := e.pods[2].Run("table inet stopped { "+chain+" }", "nft", "-f", "-")
	e.must(err)
}

func (e *ejecting) startPod() {
	e.Helper()
	e.pods[2].MustRun("nft", "delete", "table", "inet", "stopped")
}

// startLoad lets the clients connect until the function that it returns is called.
func (e *ejecting) startLoad() (stop func()) {
	ctx, cancel := context.WithCancel(e.Context())
	var group sync.WaitGroup
	for _, c := range e.clients {
		for range 4 {
			group.Go(func() {
				for ctx.Err() == nil {
					c.Try(lab.Probe{Protocol: lab.TCP, To: e.to, Timeout: 300 * time.Millisecond})
					time.Sleep(pace)
				}
			})
		}
	}
	return func() { cancel(); group.Wait() }
}

// waitStanding waits until get backends has one of these texts about the last pod.
func (e *ejecting) waitStanding(texts ...string) {
	e.Helper()
	e.eventually(func() error {
		out, status := e.runSluice("get", "backends", "web")
		for line := range strings.Lines(out) {
			is := func(text string) bool { return strings.Contains(line, text) }
			if is(e.pods[2].Addr4().String()+":80 ") && slices.ContainsFunc(texts, is) {
				return nil
			}
		}
		return fmt.Errorf("get backends exits with %d, want %q for %s:\n%s\n%s",
			status, texts, e.pods[2].Addr4(), out, e.daemon.log)
	})
}

// waitWhole waits until no pod has less than its whole share.
func (e *ejecting) waitWhole() {
	e.Helper()
	e.eventually(func() error {
		out, status := e.runSluice("get", "backends", "web")
		if status != 0 || strings.Contains(out, "ejected") || strings.Contains(out, " share") {
			return fmt.Errorf("get backends exits with %d:\n%s\n%s", status, out, e.daemon.log)
		}
		return nil
	})
}
