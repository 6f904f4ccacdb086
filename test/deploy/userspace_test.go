//go:build linux

package deploy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/conformance"
	"github.com/sluice-proxy/sluice/test/lab"
)

// servedByProcess is a node with a client and a backend of the Service of webYAML, and the image of mode userspace.
type servedByProcess struct {
	lab    *lab.Lab
	client *lab.Host
	root   string
	dir    string // with the Service
}

func newServedByProcess(t *testing.T) *servedByProcess {
	t.Helper()
	l := lab.New(t, lab.Options{Timeout: time.Second})
	createHint(t, l.NodeA, "nft")
	n := &servedByProcess{lab: l, client: l.Pod(l.NodeA, "10.180.0.9"), root: imageFor(t, "userspace"), dir: t.TempDir()}
	l.Pod(l.NodeA, "10.180.1.1").Serve(lab.TCP, 80)
	must(t, os.WriteFile(filepath.Join(n.dir, "web.yaml"), []byte(webYAML), 0o600))
	return n
}

// pod starts the container of the DaemonSet, with its own command line except for the source of its objects.
func (n *servedByProcess) pod(t *testing.T) *process {
	t.Helper()
	own := daemonSetFor(t, "userspace").Spec.Template.Spec.Containers[0].Command
	args := []string{"--proxy-mode=userspace", "--hostname-override=" + n.lab.NodeA.Name()}
	args = append(args, own[slices.Index(own, "--hostname-override=$(NODE_NAME)")+1:]...)
	return daemonSetContainer(t, n.root, "userspace", conformance.Program{Host: n.lab.NodeA, Manifests: n.dir, Args: args}).start(t, n.lab.NodeA)
}

// While a pod of the DaemonSet runs, the next one begins beside it, in another container. It takes over: a
// connection that is open goes on, and new ones are served. The first pod then ends without an error, and a pod
// that is killed leaves the node without a proxy until the next one begins.
func TestPodsTakeOverConnections(t *testing.T) {
	n := newServedByProcess(t)
	old := n.pod(t)
	old.waitForLog("msg=Synced")
	to := netip.MustParseAddrPort("10.96.0.10:80")
	flow, r := n.client.Open(lab.Probe{Protocol: lab.TCP, To: to})
	if flow == nil {
		t.Fatalf("the Service is not served: %s\n%s", r, old.log)
	}
	defer flow.Close()
	for range 3 {
		next := n.pod(t)
		old.waitForLog("Standing by")
		next.waitForLog("msg=Synced")
		if strings.Contains(next.log.String(), "Only the lock") {
			t.Errorf("the log of the next pod is\n%s", next.log)
		}
		n.answered(t, flow, "after the next pod has taken over")
		must(t, old.stop())
		n.answered(t, flow, "after the old pod has ended")
		old = next
	}
	must(t, old.cmd.Process.Kill())
	_ = old.wait()
	if r := flow.AskWithin(nil, lab.Soon); r.Outcome == lab.Answered {
		t.Errorf("after the pod was killed the connection is %s", r)
	}
	last := n.pod(t)
	last.waitForLog("msg=Synced")
	if r := n.client.Dial(lab.TCP, to); r.Outcome != lab.Answered {
		t.Errorf("after the restart of the pod that was killed: %s", r)
	}
	must(t, last.stop())
}

// answered verifies that the backend answers on an open connection, and on a new one.
func (n *servedByProcess) answered(t *testing.T, open *lab.Flow, when string) {
	t.Helper()
	if r := open.Ask(nil); r.Outcome != lab.Answered {
		t.Fatalf("%s the connection that was open is %s", when, r)
	}
	if r := n.client.Dial(lab.TCP, open.Probe().To); r.Outcome != lab.Answered {
		t.Errorf("%s a new connection is %s", when, r)
	}
}

// Two pods fit on a node at a time: nothing that the scheduler counts is taken twice, and the old pod ends when the new one
// has been ready for longer than a takeover can take.
func TestTwoPodsFitOnANode(t *testing.T) {
	ds := daemonSetFor(t, "userspace")
	update := ds.Spec.UpdateStrategy.RollingUpdate
	if update.MaxUnavailable.IntValue() != 0 || update.MaxSurge.String() == "0" {
		t.Errorf("at most %s pods are unavailable, and %s surplus", update.MaxUnavailable, update.MaxSurge)
	}
	const longest = 10 + 30 // to reach the API server, and for the handover
	if ds.Spec.MinReadySeconds <= longest {
		t.Errorf("a pod counts as available after %d s, want more than %d", ds.Spec.MinReadySeconds, longest)
	}
	for _, c := range ds.Spec.Template.Spec.Containers {
		if len(c.Ports) > 0 {
			t.Errorf("container %s lists ports, which are those of the node: %v", c.Name, c.Ports)
		}
		for _, p := range []int{c.LivenessProbe.HTTPGet.Port.IntValue(), c.ReadinessProbe.HTTPGet.Port.IntValue()} {
			if p != 10256 {
				t.Errorf("container %s is probed at port %d", c.Name, p)
			}
		}
	}
}
