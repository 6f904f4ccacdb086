//go:build linux

package endurance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// memoryLimit is the limit of the memory cgroup of Sluice, of version 1 if that has the memory
// controller, else of version 2.
const memoryLimit = 64 << 20

func TestMemoryOf64MB(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.write("many.json", many(999, 0))
	limit := w.newCgroup(memoryLimit)
	d := w.start(launch{restriction: inCgroup + limit.dir})
	d.waitSynced(1000)
	traffic := w.startTraffic()
	for g := range 6 {
		w.write("many.json", many(999, g))
		d.checkChanges()
	}
	d.waitSynced(1000)
	w.Logf("1,000 Services and changes of all of them: %s", limit)

	// 10,000 Services from files need more memory. The rules in the kernel keep working.
	w.write("many.json", many(9999, 0))
	select {
	case <-d.Ended():
		w.Logf("10,000 Services: %v, %s", d.Err(), limit)
	case <-time.After(timeout / 3):
		w.Logf("10,000 Services: still running, %s", limit)
		d.kill()
	}
	free := w.start(launch{})
	free.waitSynced(10000)
	free.kill()
	d = w.start(launch{restriction: inCgroup + limit.dir})
	s, err := d.firstSync()
	if err != nil {
		w.Logf("10,000 Services that are in the kernel already: %v, %s", err, limit)
		d = w.start(launch{})
		s, err = d.firstSync()
		w.must(err)
	} else {
		w.Logf("10,000 Services that are in the kernel already: adopted, %s", limit)
	}
	if s != 0 {
		w.Errorf("the entries already in the kernel took %d steps", s)
	}
	d.kill()
	w.checkTraffic(traffic)
}

// firstSync waits for the first complete write and returns its number of steps, or an error if the daemon exits.
func (d *daemon) firstSync() (steps int, err error) {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-d.Ended():
			return 0, d.Err()
		default:
		}
		if _, rest, logged := strings.Cut(d.log.String(), "msg=Synced "); logged {
			_, rest, _ = strings.Cut(rest, "steps=")
			number, _, _ := strings.Cut(rest, " ")
			return strconv.Atoi(number)
		}
	}
	return 0, fmt.Errorf("nothing was written; the log:\n%s", d.log)
}

// cgroup is a cgroup with a memory limit, of version 1 or 2.
type cgroup struct{ dir string }

// newCgroup creates a cgroup. A shell removes it when this process ends, even if it is killed.
func (w *testEnv) newCgroup(bytes int) cgroup {
	w.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	l := cgroup{filepath.Join(root, fmt.Sprintf("sluice-endurance-%d", os.Getpid()))}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		w.Fatalf("create a cgroup with a memory limit: %v", err)
	}
	read, write, err := os.Pipe()
	w.must(err)
	remover := exec.Command("sh", "-c", `cat; for i in 1 2 3 4 5 6 7 8 9; do rmdir "$0" && exit; sleep 1; done`, l.dir)
	remover.Stdin = read
	remover.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	w.must(remover.Start())
	w.must(read.Close())
	w.Cleanup(func() {
		_ = write.Close()
		if err := remover.Wait(); err != nil {
			w.Errorf("remove the cgroup: %v", err)
		}
	})
	for name, value := range map[string]int{file: bytes, "memory.swap.max": 0} {
		err := os.WriteFile(filepath.Join(l.dir, name), []byte(strconv.Itoa(value)), 0o644)
		if err != nil && name == file {
			w.Fatalf("limit memory: %v", err)
		}
	}
	return l
}

// String returns the memory use and how often the limit was reached.
func (l cgroup) String() string {
	var out []string
	for _, name := range []string{"memory.max_usage_in_bytes", "memory.failcnt", "memory.peak", "memory.events"} {
		if text, err := os.ReadFile(filepath.Join(l.dir, name)); err == nil {
			out = append(out, name+" "+strings.Join(strings.Fields(string(text)), " "))
		}
	}
	return strings.Join(out, ", ")
}
