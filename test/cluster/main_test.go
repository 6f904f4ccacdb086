//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// TestMain is also the program: its processes run this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "up", "run", "exec", "down", stageInside, stageNode, stageGuard:
			main()
			return
		}
	}
	flag.Parse()
	if testing.Short() {
		_ = flag.Set("test.run", "^$") // as harness.Main: they need root
	}
	lab.RaisePriority() // as the tests beside it, which would starve the cluster
	os.Exit(m.Run())
}

func eventually(t testing.TB, try func() error) {
	t.Helper()
	harness.Eventually(t, patience, try)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// running is a cluster that the program runs.
type running struct {
	t   testing.TB
	dir string
	cmd *exec.Cmd
	log *harness.Log

	ended chan struct{} // closed when it has ended
	err   error         // with which it ended
}

// begin begins to start a cluster without Sluice. It ends with the test, even if the test is killed.
func begin(t testing.TB) *running {
	t.Helper()
	r := &running{t: t, dir: filepath.Join(t.TempDir(), "cluster"), log: &harness.Log{}, ended: make(chan struct{})}
	r.cmd = exec.Command("/proc/self/exe", "run", "-bare", "-dir="+r.dir)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal is for the end of the thread
		started <- r.cmd.Start()
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		_ = r.cmd.Process.Signal(unix.SIGTERM) // an error means that it has ended
		_ = r.wait()
		if t.Failed() {
			t.Logf("the cluster says:\n%s", r.log)
		}
	})
	return r
}

// wait waits for the end of the program.
func (r *running) wait() error {
	<-r.ended
	return r.err
}

// waitFor waits until the cluster has printed a text.
func (r *running) waitFor(text string) {
	r.t.Helper()
	eventually(r.t, func() error {
		select {
		case <-r.ended:
			r.t.Fatalf("the cluster ended (%v) before it said %q", r.err, text)
		default:
		}
		if !strings.Contains(r.log.String(), text) {
			return fmt.Errorf("the cluster has not said %q:\n%s", text, r.log)
		}
		return nil
	})
}

// checkNothingLeft verifies that neither folder nor cgroups nor processes are left.
func (r *running) checkNothingLeft() {
	r.t.Helper()
	eventually(r.t, func() error {
		if _, err := os.Stat(r.dir); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the folder is left: %w", err)
		}
		dirs, err := cgroupsNamed(fmt.Sprintf("%s%d", cgroupName, r.cmd.Process.Pid))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the cgroup %s is left: %w", dir, err)
			}
		}
		for _, name := range append(nodeNames(), controlPlane) {
			if pid, err := findMachine(r.dir, name); err == nil {
				return fmt.Errorf("%s is left, process %s", name, pid)
			}
		}
		return nil
	})
}

// However a cluster ends, and when, it leaves nothing.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]struct {
		at     string
		signal syscall.Signal
	}{
		"interrupted while it starts": {"the API server answers", unix.SIGINT},
		"killed while it starts":      {"kubelet has started on node-b", unix.SIGKILL},
		"ended":                       {lastLine, unix.SIGTERM},
		"killed":                      {lastLine, unix.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t)
			c.waitFor(end.at)
			must(t, c.cmd.Process.Signal(end.signal))
			_ = c.wait()
			c.checkNothingLeft()
		})
	}
}

// A second cluster in the same folder is refused.
func TestASecondClusterIsRefused(t *testing.T) {
	c := begin(t)
	c.waitFor("writing images")
	out, err := exec.Command("/proc/self/exe", "run", "-dir="+c.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a cluster runs already") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// What the machine lacks is named, all of it, before anything starts.
func TestWhatIsMissingIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	cmd := exec.Command("/proc/self/exe", "run", "-dir="+dir)
	cmd.Env = append(os.Environ(), "PATH=/nowhere", "TEST_CLUSTER=/nowhere")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("it exits without an error")
	}
	for _, want := range []string{
		"containerd, which make cluster installs", "runc, ", "kubelet, which make cluster builds", "kube-scheduler, ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it has made the folder of the cluster")
	}
}
