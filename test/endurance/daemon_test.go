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

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/test/harness"
)

// program returns the path of Sluice, with a link kube-proxy beside it.
var program = sync.OnceValues(func() (string, error) {
	path, err := harness.Program()
	if err != nil {
		return "", err
	}
	return path, os.Symlink(path, filepath.Join(filepath.Dir(path), "kube-proxy"))
})

// launch says how Sluice is run, where that is not the ordinary way.
type launch struct {
	name     string   // of the program; "sluice" if empty
	hardship string   // what holds for it
	output   *os.File // where all goes that it prints; nil: the daemon's journal
	env      []string
}

// daemon is Sluice as a process on node A.
type daemon struct {
	*harness.Process
	w   *world
	cmd *exec.Cmd
	log journal
}

// command returns a command of Sluice's.
func (w *world) command(l launch, args ...string) *exec.Cmd {
	w.Helper()
	path, err := program()
	w.must(err)
	path = filepath.Join(filepath.Dir(path), cmp.Or(l.name, "sluice"))
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), l.env...)
	if l.hardship != "" {
		cmd = exec.Command("/proc/self/exe", append([]string{path, path}, args...)...)
		cmd.Env = append(os.Environ(), append(l.env, hardshipVar+"="+l.hardship)...)
		if l.hardship == readOnly || strings.HasPrefix(l.hardship, ownLock) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		}
	}
	if l.output != nil {
		cmd.Stdout, cmd.Stderr = l.output, l.output
	}
	return cmd
}

// start runs Sluice until it is killed, or the test ends.
func (w *world) start(l launch, args ...string) *daemon {
	w.Helper()
	all := append([]string{"--reload-jitter=0"}, w.args...) // tests do not wait for chance
	cmd := w.command(l, append(all, args...)...)
	p, err := harness.Start(w.lab.NodeA, cmd)
	w.must(err)
	return &daemon{Process: p, w: w, cmd: cmd, log: journal{p.Log}}
}

// signal sends a signal.
func (d *daemon) signal(s syscall.Signal) {
	d.w.Helper()
	d.w.must(d.Signal(s))
}

// kill ends the daemon as kill -9 does.
func (d *daemon) kill() {
	d.w.Helper()
	_, err := d.Stop(syscall.SIGKILL, patience)
	d.w.must(err)
}

// dead waits for the end.
func (d *daemon) dead() {
	d.w.Helper()
	select {
	case <-d.Ended():
	case <-time.After(patience):
		d.w.Fatalf("sluice still runs; its log:\n%s", d.log)
	}
}

// alive verifies that the daemon has not ended.
func (d *daemon) alive() {
	d.w.Helper()
	d.w.must(d.Alive())
}

// status is what the daemon says of itself.
func (w *world) status() (inspect.Status, error) {
	var s inspect.Status
	err := control.Dial(control.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/status", nil, &s)
	return s, err
}

var errBehind = errors.New("behind")

// settled waits until the daemon has everything in the kernel, and returns its
// status.
func (d *daemon) settled(services int) inspect.Status {
	d.w.Helper()
	var s inspect.Status
	d.w.eventually(func() error {
		d.alive()
		var err error
		s, err = d.w.status()
		switch {
		case err != nil:
			return err
		case s.PID != d.cmd.Process.Pid:
			return fmt.Errorf("process %d answers, want %d", s.PID, d.cmd.Process.Pid)
		case s.Health.State == inspect.Starting, s.Pending > 0, !s.Lag.Oldest.IsZero(), s.Busy != "", s.Counts.Services != services:
			return fmt.Errorf("%w: %s, %d Services (want %d), %d pending, %s", errBehind, s.Health.State, s.Counts.Services, services, s.Pending, s.Error)
		}
		return nil
	})
	return s
}

// asks runs a command of Sluice's on node A to its end.
func (w *world) asks(args ...string) (out string, status int) {
	w.Helper()
	return w.runs(launch{}, args...)
}

// runs runs Sluice on node A to its end, which must come soon.
func (w *world) runs(l launch, args ...string) (out string, status int) {
	w.Helper()
	out, status, err := harness.Run(w.lab.NodeA, patience, w.command(l, args...))
	w.must(err)
	if status == -1 {
		w.Fatalf("sluice %s does not end; it printed:\n%s", strings.Join(args, " "), out)
	}
	return out, status
}

// same makes sure that the kernel holds what the daemon wants.
func (w *world) same() {
	w.Helper()
	if out, status := w.asks("diff"); status != 0 || out != "" {
		w.Errorf("sluice diff ends with %d and says:\n%s", status, out)
	}
}

// journal is the output of a program.
type journal struct{ *harness.Log }

// count returns how often a text was printed.
func (j journal) count(text string) int { return j.Count(text) }

// once makes sure that something was logged exactly once.
func (d *daemon) once(what string) {
	d.w.Helper()
	if n := d.log.count(what); n != 1 {
		d.w.Errorf("%q is logged %d times, want once:\n%s", what, n, d.log)
	}
}

// says waits until something is logged.
func (d *daemon) says(what string) {
	d.w.Helper()
	d.w.eventually(func() error {
		if d.log.count(what) == 0 {
			return fmt.Errorf("the log lacks %q:\n%s", what, d.log)
		}
		return nil
	})
}
