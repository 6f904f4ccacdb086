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

func TestXtablesLockIsAwaited(t *testing.T) {
	t.Parallel()
	x := newTestEnv(t).iptables("legacy")
	d := x.startDaemon("-v=2")
	d.waitSynced(1)
	traffic := x.startTraffic()
	holder := exec.Command("flock", x.lock, "cat") // until its input ends
	held, err := holder.StdinPipe()
	x.must(err)
	wait, err := x.lab.NodeA.Start(holder)
	x.must(err)
	x.eventually(func() error { // until flock holds the lock
		out, err := exec.Command("flock", "--nonblock", x.lock, "true").CombinedOutput()
		if err == nil {
			return fmt.Errorf("the lock is not held %s", out)
		}
		return nil
	})
	x.write("web.json", web(0))
	who := fmt.Sprintf("held by flock (process %d)", holder.Process.Pid)
	x.waitServer("127.0.0.1:10256", "/healthz", true)
	x.waitAnsweredBy(x.client, x.ways()[0].To, 0, 1, 2) // unchanged
	d.waitForLog(`msg="Cannot write to the kernel, retrying"`)
	if out, _ := x.runSluice("status"); !strings.Contains(out, who) {
		x.Errorf("the status does not name %s:\n%s", who, out)
	}
	x.waitServer("127.0.0.1:10256", "/healthz", true)
	x.waitServer(metricsAt, "/metrics", true)
	x.must(held.Close())
	x.must(wait())
	released := time.Now()
	d.waitSynced(1)
	x.Logf("written %v after the lock was released", time.Since(released).Round(time.Millisecond))
	x.waitAnsweredBy(x.client, x.ways()[0].To, 0)
	if n := d.log.count(who); n == 0 || n > 4 {
		x.Errorf("the log names %s %d times:\n%s", who, n, d.log)
	}
	x.checkDiff()
	x.checkTraffic(traffic)
}

// Sluice is killed repeatedly while an iptables-restore that it has started writes.
func TestACrashWhileIptablesWrites(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			testCrash(newTestEnv(t).iptables(variant))
		})
	}
}

const (
	iptablesCrashes  = 4
	iptablesServices = 300 // Services besides "web"
)

func testCrash(x *tables) {
	x.write("many.json", many(iptablesServices, 0))
	d := x.startDaemon()
	d.waitSynced(iptablesServices + 1)
	traffic := x.startTraffic()
	var children []int
	for n := range iptablesCrashes {
		d.kill()
		x.write("many.json", many(iptablesServices, 1+n%2))
		d = x.startDaemon()
		child := d.child("-restore")
		time.Sleep(time.Duration(n) * 20 * time.Millisecond)
		d.kill()
		children = append(children, child)
		d = x.startDaemon()
	}
	d.waitSynced(iptablesServices + 1)
	x.checkDiff()
	x.checkBackends(iptablesServices)
	for _, pid := range children {
		if command := commandOf(pid); strings.Contains(command, "-restore") {
			x.Errorf("%s (pid %d), a child of a killed Sluice, is still running", command, pid)
		}
	}
	x.checkTraffic(traffic)
}

// child waits until the daemon has started a program whose command line contains name, and returns its pid.
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

// childrenOf returns the child processes of all threads of a process.
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

// commandOf returns the command line of a process; empty if it has ended.
func commandOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(string(text), "\x00", " ")
}
