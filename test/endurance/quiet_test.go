//go:build linux

package endurance

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/machine"
)

// quiet is how long nothing changes.
const quiet = 20 * time.Second

func TestAQuietNodeLogsNothing(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.write("many.json", many(1000, 0))
	d := w.start(launch{}, "-v=2")
	d.waitSynced(1001)
	d.waitForLog("Serving server=healthz")
	d.waitForLog("Serving server=metrics") // one of the last lines of a start
	before := d.log.String()
	used, most := quiet, machine.Scale(quiet/200)
	for i := 0; i < 3 && used > most; i++ { // other tests may evict caches and slow this one down
		began := d.cpu()
		time.Sleep(quiet)
		used = d.cpu() - began
		w.Logf("%v of CPU in %v (%.3f%% of a core)", used, quiet, 100*used.Seconds()/quiet.Seconds())
	}
	if added := strings.TrimPrefix(d.log.String(), before); added != "" {
		w.Errorf("logged without a change:\n%s", added)
	}
	if used > most {
		w.Errorf("it used %v of CPU in %v, want at most %v", used, quiet, most)
	}
}

func TestOneFailureLogsOnceAndItsRecoveryOnce(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	var taken net.Listener
	w.must(w.lab.NodeA.Do(func() (err error) {
		taken, err = net.Listen("tcp", metricsAt)
		return err
	}))
	d := w.start(launch{}, "-v=2")
	d.waitSynced(1)
	d.waitForLog("address already in use")
	w.must(taken.Close())
	d.waitForLog("The server works again")
	w.eventually(func() error {
		code, _, err := w.get(metricsAt, "/metrics")
		if err == nil && code != 200 {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	d.checkLoggedOnce("address already in use")
	d.checkLoggedOnce("The server works again")
}

// cpu returns the CPU time of all threads of the daemon.
func (d *daemon) cpu() time.Duration {
	d.w.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.cmd.Process.Pid))
	d.w.must(err)
	var all time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		d.w.must(err)
		all += time.Duration(ns)
	}
	return all
}
