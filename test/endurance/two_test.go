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
		t.Run(first, func(t *testing.T) { testTwo(newWorld(t), first) })
	}
}

func testTwo(w *world, name string) {
	first := w.start(launch{name: name})
	first.settled(1)
	traffic := w.traffic()
	pid := fmt.Sprintf("pid %d", first.cmd.Process.Pid)

	w.write("web.json", web(0, 1)) // what a second would write, if it could
	first.settled(1)
	w.answeredBy(w.client, w.ways()[0].To, 0, 1)
	before := w.rules()
	w.refused(pid, "--cluster-cidr=10.99.0.0/16", "--masquerade-all", "--metrics-bind-address=127.0.0.1:10349")

	// It cannot answer, but it is there.
	first.signal(syscall.SIGSTOP)
	w.refused(pid)
	first.signal(syscall.SIGCONT)
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("the second changed rules (-before, +now):\n%s", diff)
	}
	first.alive()
	w.write("web.json", web(0, 1, 2))
	first.settled(1)
	w.answeredBy(w.client, w.ways()[0].To, 0, 1, 2)

	// It is gone, and nobody cleaned up after it.
	first.kill()
	second := w.start(launch{})
	second.settled(1)
	w.Logf("%v from the start of the second to its first complete write, after kill -9 of the first", time.Since(second.Began))
	w.same()
	w.unharmed(traffic)
}

// refused starts a second Sluice, under both names, which must end and name the
// first.
func (w *world) refused(pid string, args ...string) {
	w.Helper()
	for _, name := range []string{"sluice", "kube-proxy"} {
		out, status := w.runs(launch{name: name}, append(w.args, args...)...)
		last := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
		if status == 0 || !strings.Contains(last, pid) {
			w.Errorf("a second %s ends with %d and says, without %q:\n%s", name, status, pid, out)
		}
	}
}
