//go:build linux

package endurance

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestASecondDaemonNamesTheFirstAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"sluice", "kube-proxy"} {
		t.Run(first, func(t *testing.T) { testSecondDaemon(newTestEnv(t), first) })
	}
}

func testSecondDaemon(w *testEnv, name string) {
	first := w.start(launch{name: name})
	first.waitSynced(1)
	traffic := w.startTraffic()
	pid := fmt.Sprintf("pid %d", first.cmd.Process.Pid)

	w.write("web.json", web(0, 1)) // a second daemon would revert this change
	first.waitSynced(1)
	w.waitAnsweredBy(w.client, w.ways()[0].To, 0, 1)
	before := w.rules()
	w.checkSecondFails(pid, "--cluster-cidr=10.99.0.0/16", "--masquerade-all", "--metrics-bind-address=127.0.0.1:10349")

	// The first daemon is stopped and cannot answer, but holds the lock.
	first.signal(syscall.SIGSTOP)
	w.checkSecondFails(pid)
	first.signal(syscall.SIGCONT)
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("the second daemon changed rules (-before, +after):\n%s", diff)
	}
	first.checkAlive()
	w.write("web.json", web(0, 1, 2))
	first.waitSynced(1)
	w.waitAnsweredBy(w.client, w.ways()[0].To, 0, 1, 2)

	// The first daemon was killed and could not clean up.
	first.kill()
	second := w.start(launch{})
	second.waitSynced(1)
	w.Logf("%v from the start of the second to its first complete write, after kill -9 of the first",
		time.Since(second.Began))
	w.checkDiff()
	w.checkTraffic(traffic)
}

// checkSecondFails starts a second Sluice, under both names, which must exit with an error that names the first.
func (w *testEnv) checkSecondFails(pid string, args ...string) {
	w.Helper()
	for _, name := range []string{"sluice", "kube-proxy"} {
		out, status := w.runSluiceWith(launch{name: name}, append(w.args, args...)...)
		last := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
		if status == 0 || !strings.Contains(last, pid) {
			w.Errorf("a second %s exits with %d, without %q in its last line:\n%s", name, status, pid, out)
		}
	}
}
