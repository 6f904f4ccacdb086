//go:build linux

package endurance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// held is how long another program keeps the lock: longer than a program of
// iptables is given to wait, which is 5 s.
const held = 7 * time.Second

func TestTheLockOfIptablesIsWaitedFor(t *testing.T) {
	t.Parallel()
	x := newWorld(t).iptables("legacy")
	d := x.begin("-v=2")
	d.settled(1)
	traffic := x.traffic()
	holder := exec.Command("flock", x.lock, "sleep", strconv.Itoa(int(held/time.Second)))
	wait, err := x.lab.NodeA.Start(holder)
	x.must(err)
	x.eventually(func() error { // until it has it
		out, err := exec.Command("flock", "--nonblock", x.lock, "true").CombinedOutput()
		if err == nil {
			return fmt.Errorf("the lock is free %s", out)
		}
		return nil
	})
	began := time.Now()
	x.write("web.json", web(0))
	who := fmt.Sprintf("held by flock (process %d)", holder.Process.Pid)
	d.says(`msg="Waiting for the lock of iptables"`)
	x.answers("127.0.0.1:10256", "/healthz", true)
	x.answeredBy(x.client, x.ways()[0].To, 0, 1, 2) // as before
	d.says(`msg="Cannot write to the kernel, retrying"`)
	if took := time.Since(began); took >= held {
		x.Errorf("that nothing can be written is said after %v", took)
	}
	if out, _ := x.asks("status"); !strings.Contains(out, who) {
		x.Errorf("the status does not name %s:\n%s", who, out)
	}
	x.answers("127.0.0.1:10256", "/healthz", true)
	x.answers(metricsAt, "/metrics", true)
	x.must(wait())
	released := time.Now()
	d.settled(1)
	x.Logf("written %v after the lock was released", time.Since(released).Round(time.Millisecond))
	x.answeredBy(x.client, x.ways()[0].To, 0)
	if n := d.log.count(who); n == 0 || n > 4 {
		x.Errorf("the log names %s %d times:\n%s", who, n, d.log)
	}
	x.same()
	x.unharmed(traffic)
}

// Sluice is killed while a program that it has started writes, again and again.
func TestACrashWhileIptablesWrites(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			testCrash(newWorld(t).iptables(variant))
		})
	}
}

const (
	iptablesCrashes = 4
	iptablesCrowd   = 300 // Services besides "web"
)

func testCrash(x *tables) {
	x.write("many.json", many(iptablesCrowd, 0))
	d := x.begin()
	d.settled(iptablesCrowd + 1)
	traffic := x.traffic()
	var children []int
	for n := range iptablesCrashes {
		d.kill()
		x.write("many.json", many(iptablesCrowd, 1+n%2))
		d = x.begin()
		child := d.child("-restore")
		time.Sleep(time.Duration(n) * 20 * time.Millisecond)
		d.kill()
		children = append(children, child)
		d = x.begin()
	}
	d.settled(iptablesCrowd + 1)
	x.same()
	x.programmed(iptablesCrowd)
	for _, pid := range children {
		if command := commandOf(pid); strings.Contains(command, "-restore") {
			x.Errorf("%s (pid %d), of a Sluice that was killed, still runs", command, pid)
		}
	}
	x.unharmed(traffic)
}

// child waits until the daemon has started a program with this in its name.
func (d *daemon) child(name string) int {
	d.w.Helper()
	pid := 0
	d.w.eventually(func() error {
		for _, c := range childrenOf(d.cmd.Process.Pid) {
			if strings.Contains(commandOf(c), name) {
				pid = c
				return nil
			}
		}
		return fmt.Errorf("no program %s was started:\n%s", name, d.log)
	})
	return pid
}

// childrenOf are the processes that all threads of a process have started.
func childrenOf(pid int) []int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var all []int
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for word := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return all
}

// commandOf is what a process runs; empty if it is gone.
func commandOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(text), "\x00", " ")
}
