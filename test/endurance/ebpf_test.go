//go:build linux

package endurance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// In mode ebpf sockets are balanced even while Sluice is killed and starts again, and while there are no rules of its
// packet plane at all. A cleanup leaves nothing.
func TestSocketsAreBalancedWithoutSluice(t *testing.T) {
	kerneltest.NeedPrograms(t)
	w := newTestEnvIn(t, lab.Options{Cgroups: true})
	dir := filepath.Join(lab.BPFFS(t), "sluice")
	where := []string{"--bpf-dir=" + dir, "--cgroup-root=" + w.lab.NodeA.Cgroup()}
	w.args = append(append(w.args, "--proxy-mode=ebpf"), where...)
	d := w.start(launch{})
	d.waitSynced(1)
	d.checkLoggedOnce("Processes in other cgroups are served packet by packet") // it is not the root
	if n := d.log.count("Sockets are not balanced") + d.log.count("have no effect"); n > 0 {
		t.Fatalf("programs do not work:\n%s", d.log)
	}
	w.awaitPod(dir, w.client)
	traffic := w.startTraffic()
	for n := range 5 {
		d.kill()
		if n%2 == 0 {
			w.write("web.json", web(0, 1))
		} else {
			w.write("web.json", web(0, 1, 2))
		}
		d = w.start(launch{})
		d.waitSynced(1)
	}
	w.checkDiff()
	w.checkTraffic(traffic)

	d.kill()
	w.lab.NodeA.MustRun("nft", "flush", "ruleset")
	for _, way := range w.ways()[:3] { // from the pod and from the node
		for range 10 {
			if r := way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To}); r.Outcome != lab.Answered {
				t.Errorf("%s to %s without rules: %s", way.From.Name(), way.To, r)
			}
		}
	}
	if r := w.client.WithoutCgroup().Dial(lab.TCP, w.ways()[0].To); r.Outcome == lab.Answered {
		t.Errorf("a client in another cgroup is balanced without rules: %s", r)
	}
	d = w.start(launch{})
	d.waitSynced(1)
	d.kill()

	out, status := w.runSluice(append([]string{"--cleanup"}, where...)...)
	if status != 0 || !strings.Contains(out, "removed sluice: 10 programs of sockets") {
		t.Errorf("--cleanup exits with %d; its output:\n%s", status, out)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after --cleanup there is %s: %v", dir, err)
	}
	if r := w.client.Dial(lab.TCP, w.ways()[0].To); r.Outcome == lab.Answered {
		t.Errorf("after --cleanup the Service answers: %s", r)
	}
}

// Connections of processes in exempt cgroups, also in those made later, are translated packet by packet.
func TestExemptCgroups(t *testing.T) {
	kerneltest.NeedPrograms(t)
	w := newTestEnvIn(t, lab.Options{Cgroups: true})
	node := w.lab.NodeA
	inside := func(path string) func(func() error) error {
		return lab.Inside(t, lab.Below(t, node.Cgroup(), path), node.NetNSFD())
	}
	early, other := inside("mesh-early/proxy"), inside("other")
	w.args = append(w.args, "--proxy-mode=ebpf", "--exempt-cgroups=mesh-*/proxy",
		"--bpf-dir="+filepath.Join(lab.BPFFS(t), "sluice"), "--cgroup-root="+node.Cgroup())
	d := w.start(launch{})
	d.waitSynced(1)
	to := w.ways()[2].To
	check := func(name string, run func(func() error) error, exempt bool) {
		t.Helper()
		if got, err := node.PeerInKernel(run, to); got != exempt || err != nil {
			t.Errorf("%s: a connection is translated packet by packet: %t, want %t; %v", name, got, exempt, err)
		}
	}
	check("early", early, true)
	check("other", other, false)

	late := inside("mesh-late/proxy")
	w.waitMetric("sluice_ebpf_exempt_cgroups", "2")
	check("late", late, true)
	check("beside", inside("mesh-late/app"), false)

	d.kill()
	d = w.start(launch{})
	d.waitSynced(1)
	check("early, after a restart", early, true)
	check("other, after a restart", other, false)
	d.kill()
}
