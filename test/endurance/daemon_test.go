//go:build linux

package endurance

import (
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
)

// program builds Sluice, once for all tests, and returns its path. /run is this
// process's own, so that nothing stays.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/run", "program-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "../../cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sluice: %w\n%s", err, out)
	}
	return path, os.Symlink(path, filepath.Join(dir, "kube-proxy"))
})

// launch says how Sluice is run, where that is not the ordinary way.
type launch struct {
	name     string   // of the program; "sluice" if empty
	hardship string   // what holds for it
	output   *os.File // where all goes that it prints; nil: the daemon's journal
	env      []string
}

// daemon is Sluice as a program of its own, on node A.
type daemon struct {
	w    *world
	cmd  *exec.Cmd
	log  *journal
	born time.Time
	gone chan struct{}
	end  error // valid when gone
}

// command is Sluice's, on node A, with a log of its own.
func (w *world) command(l launch, args ...string) (*exec.Cmd, *journal) {
	w.Helper()
	path, err := program()
	w.must(err)
	if l.name == "" {
		l.name = "sluice"
	}
	path = filepath.Join(filepath.Dir(path), l.name)
	cmd, log := exec.Command(path, args...), &journal{}
	cmd.Env = append(os.Environ(), l.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if l.hardship != "" {
		cmd = exec.Command("/proc/self/exe", append([]string{path, path}, args...)...)
		cmd.Env = append(os.Environ(), append(l.env, hardshipVar+"="+l.hardship)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		if l.hardship == readOnly || strings.HasPrefix(l.hardship, ownLock) {
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
		}
	}
	cmd.Stdout, cmd.Stderr = log, log
	if l.output != nil {
		cmd.Stdout, cmd.Stderr = l.output, l.output
	}
	return cmd, log
}

// start runs Sluice until it is killed, or the test ends.
func (w *world) start(l launch, args ...string) *daemon {
	w.Helper()
	all := append([]string{"--reload-jitter=0"}, w.args...) // tests do not wait for chance
	cmd, log := w.command(l, append(all, args...)...)
	d := &daemon{w: w, cmd: cmd, log: log, born: time.Now(), gone: make(chan struct{})}
	wait, err := w.lab.NodeA.Start(cmd)
	w.must(err)
	go func() {
		defer close(d.gone)
		d.end = wait()
	}()
	return d
}

// signal sends a signal.
func (d *daemon) signal(s syscall.Signal) {
	d.w.Helper()
	d.w.must(d.cmd.Process.Signal(s))
}

// kill ends the daemon as kill -9 does.
func (d *daemon) kill() {
	d.w.Helper()
	d.signal(syscall.SIGKILL)
	d.dead()
}

// dead waits for the end.
func (d *daemon) dead() {
	d.w.Helper()
	select {
	case <-d.gone:
	case <-time.After(patience):
		d.w.Fatalf("sluice still runs; its log:\n%s", d.log)
	}
}

// alive makes sure that the daemon has not ended.
func (d *daemon) alive() {
	d.w.Helper()
	select {
	case <-d.gone:
		d.w.Fatalf("sluice has ended: %v; its log:\n%s", d.end, d.log)
	default:
	}
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
	cmd, log := w.command(l, args...)
	wait, err := w.lab.NodeA.Start(cmd)
	w.must(err)
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err = <-done:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		w.Fatalf("sluice %s does not end; it said:\n%s", strings.Join(args, " "), log)
	}
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return log.String(), exit.ExitCode()
	}
	w.must(err)
	return log.String(), 0
}

// same makes sure that the kernel holds what the daemon wants.
func (w *world) same() {
	w.Helper()
	if out, status := w.asks("diff"); status != 0 || out != "" {
		w.Errorf("sluice diff ends with %d and says:\n%s", status, out)
	}
}

// journal keeps what a program prints.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// String is all that was printed.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// count says how often something was printed.
func (j *journal) count(what string) int { return strings.Count(j.String(), what) }

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
