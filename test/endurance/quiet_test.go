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
)

// quiet is how long nothing happens.
const quiet = 20 * time.Second

func TestAQuietNodeLogsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("many.json", many(1000, 0))
	d := w.start(launch{}, "-v=2")
	d.settled(1001)
	d.says("Serving server=healthz")
	d.says("Serving server=metrics") // the last lines of a start
	before := d.log.String()
	used := quiet
	for i := 0; i < 3 && used > quiet/200; i++ { // work costs more while others keep the caches busy
		began := d.cpu()
		time.Sleep(quiet)
		used = d.cpu() - began
		w.Logf("%v of CPU in %v (%.3f%% of a core)", used, quiet, 100*used.Seconds()/quiet.Seconds())
	}
	if said := strings.TrimPrefix(d.log.String(), before); said != "" {
		w.Errorf("nothing happened, but it logs:\n%s", said)
	}
	if used > quiet/200 {
		w.Errorf("it uses %v of CPU in %v", used, quiet)
	}
}

func TestOneFailureLogsOnceAndItsRecoveryOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var taken net.Listener
	w.must(w.lab.NodeA.Do(func() (err error) {
		taken, err = net.Listen("tcp", metricsAt)
		return err
	}))
	d := w.start(launch{}, "-v=2")
	d.settled(1)
	d.says("address already in use")
	w.must(taken.Close())
	d.says("The server works again")
	w.eventually(func() error {
		code, _, err := w.get(metricsAt, "/metrics")
		if err == nil && code != 200 {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	d.once("address already in use")
	d.once("The server works again")
}

// cpu is how long all threads of the daemon ran.
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
