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

// memory is all that Sluice may use, in a cgroup of its own. Where version 1 of
// cgroups has memory it is that, else version 2; there is no substitute for them.
const memory = 64 << 20

func TestMemoryOf64MB(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("many.json", many(999, 0))
	limit := w.limited(memory)
	d := w.start(launch{hardship: inCgroup + limit.dir})
	d.settled(1000)
	traffic := w.traffic()
	for g := range 6 {
		w.write("many.json", many(999, g))
		d.follows()
	}
	d.settled(1000)
	w.Logf("1,000 Services and changes of all of them: %s", limit)

	// Ten times as many, from files, are too much. What is in the kernel serves on.
	w.write("many.json", many(9999, 0))
	select {
	case <-d.Ended():
		w.Logf("10,000 Services: %v, %s", d.Err(), limit)
	case <-time.After(patience / 3):
		w.Logf("10,000 Services: it lives, %s", limit)
		d.kill()
	}
	free := w.start(launch{})
	free.settled(10000)
	free.kill()
	d = w.start(launch{hardship: inCgroup + limit.dir})
	s, err := d.first()
	if err != nil {
		w.Logf("10,000 Services that are in the kernel already: %v, %s", err, limit)
		d = w.start(launch{})
		s, err = d.first()
		w.must(err)
	} else {
		w.Logf("10,000 Services that are in the kernel already: adopted, %s", limit)
	}
	if s != 0 {
		w.Errorf("what was in the kernel already took %d steps", s)
	}
	d.kill()
	w.unharmed(traffic)
}

// first waits for the first complete write and returns its steps, or says how
// the daemon ended.
func (d *daemon) first() (steps int, err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-d.Ended():
			return 0, d.Err()
		default:
		}
		if _, rest, said := strings.Cut(d.log.String(), "msg=Synced "); said {
			_, rest, _ = strings.Cut(rest, "steps=")
			number, _, _ := strings.Cut(rest, " ")
			return strconv.Atoi(number)
		}
	}
	return 0, fmt.Errorf("nothing was written; the log says:\n%s", d.log)
}

// limit is a cgroup with a limit of memory, of version 1 or 2, whichever has
// memory here.
type limit struct{ dir string }

// limited makes one. It goes with the test, and when that is killed as well: a
// shell waits for the end of this process to remove it.
func (w *world) limited(bytes int) limit {
	w.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	l := limit{filepath.Join(root, fmt.Sprintf("sluice-endurance-%d", os.Getpid()))}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		w.Fatalf("make a cgroup with a limit of memory: %v", err)
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

// String says how much was used and how often it was not enough.
func (l limit) String() string {
	var out []string
	for _, name := range []string{"memory.max_usage_in_bytes", "memory.failcnt", "memory.peak", "memory.events"} {
		if text, err := os.ReadFile(filepath.Join(l.dir, name)); err == nil {
			out = append(out, name+" "+strings.Join(strings.Fields(string(text)), " "))
		}
	}
	return strings.Join(out, ", ")
}
