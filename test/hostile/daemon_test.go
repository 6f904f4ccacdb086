//go:build linux

package hostile

import (
	"cmp"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/machine"
)

// daemon is a Sluice process on node A.
type daemon struct {
	*harness.Process
	s *attackTest
}

// RLIMIT_DATA in kB. A successful attack must not exhaust the memory of the test
// machine, and a command that reads without a limit must fail.
const (
	daemonMemory  = 2 << 20
	commandMemory = 400 << 10
)

// command returns a sluice command with limits on its resources.
func (s *attackTest) command(memory int, args ...string) *exec.Cmd {
	s.Helper()
	path, err := harness.Program()
	s.must(err)
	script := fmt.Sprintf(`ulimit -d %d && ulimit -n %d && exec "$0" "$@"`, memory, cmp.Or(s.files, 1024))
	return exec.Command("sh", append([]string{"-c", script, path}, args...)...)
}

// launch starts the daemon.
func (s *attackTest) launch(args ...string) {
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

func (d *daemon) stop(signal syscall.Signal) {
	d.s.Helper()
	if _, err := d.Stop(signal, changeTimeout()); err != nil {
		d.s.Error(err)
		_, err := d.Stop(syscall.SIGKILL, changeTimeout())
		d.s.must(err)
	}
}

// checkAlive verifies that the daemon is still running.
func (d *daemon) checkAlive() {
	d.s.Helper()
	if err := d.Alive(); err != nil {
		d.s.Fatal(abridged(err.Error()))
	}
}

// commandTimeout bounds a sluice command.
func commandTimeout() time.Duration { return machine.Scale(5 * time.Second) }

// runSluice runs a sluice command with commandTimeout.
func (s *attackTest) runSluice(args ...string) (out string, code int) {
	s.Helper()
	return s.runSluiceWithin(commandTimeout(), args...)
}

// runSluiceWithin runs a sluice command as root on node A, and returns its output and exit
// code; -1 if it had to be killed.
func (s *attackTest) runSluiceWithin(limit time.Duration, args ...string) (out string, code int) {
	s.Helper()
	out, code, err := harness.Run(s.lab.NodeA, limit, s.command(commandMemory, args...))
	if err != nil {
		s.Error(err)
	}
	return out, code
}

// checkUsage verifies that the daemon stays within its bounds.
func (s *attackTest) checkUsage(bounds limits, began time.Time) {
	s.Helper()
	if s.daemon.Alive() != nil {
		return // reported already
	}
	peak, err := harness.PeakMemory(s.daemon.PID)
	s.must(err)
	used, err := s.daemon.CPU()
	s.must(err)
	memory, cpu := int(peak>>20), used.Seconds()
	most := startCPU*machine.Slowdown() + bounds.cpu*time.Since(began).Seconds()
	s.Logf("%d MB (of %d), %.1f s of CPU (of %.1f), %d bytes of log",
		memory, bounds.memory, cpu, most, s.daemon.Log.Size())
	if memory > bounds.memory {
		s.Errorf("the daemon used %d MB, want at most %d", memory, bounds.memory)
	}
	if cpu > most {
		s.Errorf("the daemon and its children used %.1f s of CPU, want at most %.1f", cpu, most)
	}
	if n := s.daemon.Log.Size(); n > bounds.log {
		s.Errorf("the daemon logged %d bytes, want at most %d; the last:\n%s", n, bounds.log, s.daemon.Log.End())
	}
}
