//go:build linux

package endurance

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/test/harness"
)

// programs returns a folder with Sluice under two names, sluice and kube-proxy.
var programs = sync.OnceValues(func() (string, error) {
	path, err := harness.Program()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("/run", "programs-")
	return dir, errors.Join(err, os.Symlink(path, filepath.Join(dir, "sluice")),
		os.Symlink(path, filepath.Join(dir, "kube-proxy")))
})

// launch are options of a start of Sluice.
type launch struct {
	name        string   // of the program; "sluice" if empty
	restriction string   // see restriction_test.go
	output      *os.File // of stdout and stderr; nil: the daemon's journal
	env         []string
}

// daemon is a Sluice process on node A.
type daemon struct {
	*harness.Process
	w   *testEnv
	cmd *exec.Cmd
	log journal
}

func (w *testEnv) command(l launch, args ...string) *exec.Cmd {
	w.Helper()
	dir, err := programs()
	w.must(err)
	path := filepath.Join(dir, cmp.Or(l.name, "sluice"))
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), l.env...)
	if l.restriction != "" {
		cmd = exec.Command("/proc/self/exe", append([]string{path, path}, args...)...)
		cmd.Env = append(os.Environ(), append(l.env, restrictionVar+"="+l.restriction)...)
		if l.restriction == readOnly || strings.HasPrefix(l.restriction, ownLock) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		}
	}
	if l.output != nil {
		cmd.Stdout, cmd.Stderr = l.output, l.output
	}
	return cmd
}

// start runs Sluice until it is killed, or the test ends.
func (w *testEnv) start(l launch, args ...string) *daemon {
	w.Helper()
	all := append([]string{"--reload-jitter=0"}, w.args...) // tests do not wait for random delays
	cmd := w.command(l, append(all, args...)...)
	p, err := harness.Start(w.lab.NodeA, cmd)
	w.must(err)
	return &daemon{Process: p, w: w, cmd: cmd, log: journal{p.Log}}
}

func (d *daemon) signal(s syscall.Signal) {
	d.w.Helper()
	d.w.must(d.Signal(s))
}

// kill ends the daemon with SIGKILL.
func (d *daemon) kill() {
	d.w.Helper()
	_, err := d.Stop(syscall.SIGKILL, timeout)
	d.w.must(err)
}

func (d *daemon) waitExit() {
	d.w.Helper()
	select {
	case <-d.Ended():
	case <-time.After(timeout):
		d.w.Fatalf("sluice is still running; its log:\n%s", d.log)
	}
}

// checkAlive verifies that the daemon is still running.
func (d *daemon) checkAlive() {
	d.w.Helper()
	d.w.must(d.Alive())
}

func (w *testEnv) status() (inspect.Status, error) {
	var s inspect.Status
	err := admin.Dial(admin.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/status", nil, &s)
	return s, err
}

var errBehind = errors.New("behind")

// waitSynced waits until everything is in the kernel, and returns the status of the daemon.
func (d *daemon) waitSynced(services int) inspect.Status {
	d.w.Helper()
	var s inspect.Status
	d.w.eventually(func() error {
		d.checkAlive()
		var err error
		s, err = d.w.status()
		switch {
		case err != nil:
			return err
		case s.PID != d.cmd.Process.Pid:
			return fmt.Errorf("process %d answers, want %d", s.PID, d.cmd.Process.Pid)
		case s.Health.State == health.Starting, s.Pending > 0, !s.Lag.Since.IsZero(), s.Busy != "",
			s.Counts.Services != services:
			return fmt.Errorf("%w: %s, %d Services (want %d), %d pending, %s",
				errBehind, s.Health.State, s.Counts.Services, services, s.Pending, s.Error)
		}
		return nil
	})
	return s
}

// runSluice runs a sluice command on node A and waits for its exit.
func (w *testEnv) runSluice(args ...string) (out string, status int) {
	w.Helper()
	return w.runSluiceWith(launch{}, args...)
}

// runSluiceWith runs a sluice command with options. The command must exit within timeout.
func (w *testEnv) runSluiceWith(l launch, args ...string) (out string, status int) {
	w.Helper()
	out, status, err := harness.Run(w.lab.NodeA, timeout, w.command(l, args...))
	w.must(err)
	if status == -1 {
		w.Fatalf("sluice %s does not exit; its output:\n%s", strings.Join(args, " "), out)
	}
	return out, status
}

// checkDiff verifies that sluice diff finds no difference between the kernel and the intended rules.
func (w *testEnv) checkDiff() {
	w.Helper()
	if out, status := w.runSluice("diff"); status != 0 || out != "" {
		w.Errorf("sluice diff exits with %d; its output:\n%s", status, out)
	}
}

// journal is the output of a program.
type journal struct{ *harness.Log }

// count returns how often a text was printed.
func (j journal) count(text string) int { return j.Count(text) }

// checkLoggedOnce verifies that a text was logged exactly once.
func (d *daemon) checkLoggedOnce(text string) {
	d.w.Helper()
	if n := d.log.count(text); n != 1 {
		d.w.Errorf("%q is logged %d times, want once:\n%s", text, n, d.log)
	}
}

// waitForLog waits until a text is logged.
func (d *daemon) waitForLog(text string) {
	d.w.Helper()
	d.w.eventually(func() error {
		if d.log.count(text) == 0 {
			return fmt.Errorf("the log lacks %q:\n%s", text, d.log)
		}
		return nil
	})
}
