//go:build linux

package hostile

import (
	"cmp"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// daemon is a Sluice that runs on node A.
type daemon struct {
	*harness.Process
	s *siege
}

// RLIMIT_DATA in kB. An attack that succeeds must not take the machine of the
// test down, and a command that reads without an end must fail.
const (
	daemonMemory  = 2 << 20
	commandMemory = 400 << 10
)

// command returns a command of Sluice within limits on resources.
func (s *siege) command(memory int, args ...string) *exec.Cmd {
	s.Helper()
	path, err := harness.Program()
	s.must(err)
	script := fmt.Sprintf(`ulimit -d %d && ulimit -n %d && exec "$0" "$@"`, memory, cmp.Or(s.files, 1024))
	return exec.Command("sh", append([]string{"-c", script, path}, args...)...)
}

// launch starts the daemon.
func (s *siege) launch(args ...string) {
	s.Helper()
	p, err := harness.Start(s.lab.NodeA, s.command(daemonMemory, append(s.args, args...)...))
	s.must(err)
	s.daemon = &daemon{Process: p, s: s}
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("the end of the log:\n%s", p.Log.End())
		}
	})
}

// stop ends the daemon with a signal.
func (d *daemon) stop(signal syscall.Signal) {
	d.s.Helper()
	if _, err := d.Stop(signal, giveUp); err != nil {
		d.s.Error(err)
		_, err := d.Stop(syscall.SIGKILL, giveUp)
		d.s.must(err)
	}
}

// alive verifies that the daemon has not ended.
func (d *daemon) alive() {
	d.s.Helper()
	if err := d.Alive(); err != nil {
		d.s.Fatal(abridged(err.Error()))
	}
}

// askTime bounds a command of Sluice's.
const askTime = 5 * time.Second

// ask is askWithin askTime.
func (s *siege) ask(args ...string) (out string, code int) {
	s.Helper()
	return s.askWithin(askTime, args...)
}

// askWithin runs a command of Sluice's as root on node A, and returns what it
// printed and its exit code; -1 if it had to be killed.
func (s *siege) askWithin(limit time.Duration, args ...string) (out string, code int) {
	s.Helper()
	out, code, err := harness.Run(s.lab.NodeA, limit, s.command(commandMemory, args...))
	if err != nil {
		s.Error(err)
	}
	return out, code
}

// usage verifies that the daemon stays within its bounds.
func (s *siege) usage(bounds limits, began time.Time) {
	s.Helper()
	if s.daemon.Alive() != nil {
		return // reported already
	}
	peak, err := harness.PeakMemory(s.daemon.PID)
	s.must(err)
	used, err := s.daemon.CPU()
	s.must(err)
	memory, cpu := int(peak>>20), used.Seconds()
	most := startCPU + bounds.cpu*time.Since(began).Seconds()
	s.Logf("%d MB (of %d), %.1f s of CPU (of %.1f), %d bytes of log", memory, bounds.memory, cpu, most, s.daemon.Log.Size())
	if memory > bounds.memory {
		s.Errorf("the daemon needed %d MB, want %d at most", memory, bounds.memory)
	}
	if cpu > most {
		s.Errorf("the daemon and its children needed %.1f s of CPU, want %.1f at most", cpu, most)
	}
	if n := s.daemon.Log.Size(); n > bounds.log {
		s.Errorf("the daemon logged %d bytes, want %d at most; the last:\n%s", n, bounds.log, s.daemon.Log.End())
	}
}
