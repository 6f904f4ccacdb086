//go:build linux

package hostile

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program builds Sluice once for all tests and returns its path.
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
	return path, nil
})

// daemon is a Sluice that runs on node A.
type daemon struct {
	s    *siege
	cmd  *exec.Cmd
	log  *journal
	gone chan struct{}
	end  error // valid when gone
}

// RLIMIT_DATA in kB. An attack that succeeds must not take the machine of the
// test down, and a command that reads without an end must fail.
const (
	daemonMemory  = 2 << 20
	commandMemory = 400 << 10
)

// command is a command of Sluice, within limits on resources, and what it prints.
func (s *siege) command(memory int, args ...string) (*exec.Cmd, *journal) {
	s.Helper()
	path, err := program()
	s.must(err)
	script := fmt.Sprintf(`ulimit -d %d && ulimit -n %d && exec "$0" "$@"`, memory, cmp.Or(s.files, 1024))
	cmd, log := exec.Command("sh", append([]string{"-c", script, path}, args...)...), &journal{}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, log
}

// launch starts the daemon.
func (s *siege) launch(args ...string) {
	s.Helper()
	cmd, log := s.command(daemonMemory, append(s.args, args...)...)
	d := &daemon{s: s, cmd: cmd, log: log, gone: make(chan struct{})}
	wait, err := s.lab.NodeA.Start(cmd)
	s.must(err)
	go func() {
		defer close(d.gone)
		d.end = wait()
	}()
	s.daemon = d
}

// stop ends the daemon with a signal.
func (d *daemon) stop(signal syscall.Signal) {
	d.s.Helper()
	_ = d.cmd.Process.Signal(signal) // alive tells if it ended before
	select {
	case <-d.gone:
	case <-time.After(giveUp):
		d.s.Errorf("the daemon still runs %v after %v", giveUp, signal)
		_ = d.cmd.Process.Kill()
		<-d.gone
	}
}

// alive verifies that the daemon has not ended.
func (d *daemon) alive() {
	d.s.Helper()
	select {
	case <-d.gone:
		d.s.Fatalf("the daemon has ended: %v; its log:\n%s", d.end, abridged(d.log.last()))
	default:
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
	cmd, log := s.command(commandMemory, args...)
	wait, err := s.lab.NodeA.Start(cmd)
	s.must(err)
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err = wait()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		s.Error(err)
	}
	return log.String(), cmd.ProcessState.ExitCode()
}

// usage verifies that the daemon stays within its bounds.
func (s *siege) usage(bounds limits, began time.Time) {
	s.Helper()
	select {
	case <-s.daemon.gone:
		return // reported already
	default:
	}
	memory, cpu := s.daemon.memory(), s.daemon.cpu()
	most := startCPU + bounds.cpu*time.Since(began).Seconds()
	s.Logf("%d MB (of %d), %.1f s of CPU (of %.1f), %d bytes of log", memory, bounds.memory, cpu, most, s.daemon.log.size())
	if memory > bounds.memory {
		s.Errorf("the daemon needed %d MB, want %d at most", memory, bounds.memory)
	}
	if cpu > most {
		s.Errorf("the daemon and its children needed %.1f s of CPU, want %.1f at most", cpu, most)
	}
	if n := s.daemon.log.size(); n > bounds.log {
		s.Errorf("the daemon logged %d bytes, want %d at most; the last:\n%s", n, bounds.log, s.daemon.log.last())
	}
}

// memory is the peak RSS in MB.
func (d *daemon) memory() int {
	d.s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	d.s.must(err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kb, _ := strconv.Atoi(strings.Fields(rest + " -")[0]) // a process that ends has none
	return kb >> 10
}

// cpu is the CPU time in seconds, that of children that ended included.
func (d *daemon) cpu() float64 {
	d.s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	d.s.must(err)
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")"):]))
	ticks := 0 // fields 14 to 17 of proc(5); the first here is the second there
	for _, field := range fields[12:16] {
		n, err := strconv.Atoi(field)
		d.s.must(err)
		ticks += n
	}
	return float64(ticks) / 100
}

// journal keeps the beginning and the end of what a program prints.
type journal struct {
	mu    sync.Mutex
	text  []byte
	bytes int
}

const journalKeeps = 4 << 20

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.bytes += len(b)
	j.text = append(j.text, b...)
	if len(j.text) > 2*journalKeeps {
		j.text = append([]byte(nil), j.text[len(j.text)-journalKeeps:]...)
	}
	return len(b), nil
}

// String is what was printed, or the end of it.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.text)
}

// last is the end of what was printed.
func (j *journal) last() string {
	text := j.String()
	return text[max(0, len(text)-2000):]
}

func (j *journal) size() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}
