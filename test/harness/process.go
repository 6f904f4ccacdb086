//go:build linux

package harness

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Process is a program on a host of a lab. It ends with the lab.
type Process struct {
	Log   *Log // of standard output and error
	PID   int
	Began time.Time

	host  *lab.Host
	ended chan struct{}
	err   error // valid once ended is closed
}

// Start starts a command on a host, in a new process group so that Ctrl-C does not reach it. If
// the command already has a standard output or error, nothing is logged.
func Start(host *lab.Host, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Log: &Log{}, Began: time.Now(), host: host, ended: make(chan struct{})}
	if cmd.Stdout == nil && cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = p.Log, p.Log
		cmd.WaitDelay = time.Second // a child that outlives the program keeps the pipes open
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	wait, err := host.Start(cmd)
	if err != nil {
		return nil, err
	}
	p.PID = cmd.Process.Pid
	go func() {
		defer close(p.ended)
		if p.err = wait(); errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil
		}
	}()
	return p, nil
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err returns the exit error of the process; nil while it is running or if it exited with 0.
func (p *Process) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// Alive returns an error if the process has ended.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return p.explain(fmt.Errorf("%w: %w", ErrEnded, cmp.Or(p.err, errors.New("exit status 0"))))
	default:
		return nil
	}
}

// ErrEnded means that a process has ended unexpectedly.
var ErrEnded = errors.New("the process has ended")

// explain adds the end of the log to an error.
func (p *Process) explain(err error) error {
	return fmt.Errorf("%w; the end of its log:\n%s", err, p.Log.End())
}

// Signal sends a signal. It returns no error if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := syscall.Kill(p.PID, s); err != nil {
		return fmt.Errorf("send %v: %w", s, err)
	}
	return nil
}

// Stop sends a signal and waits until the process has ended, for at most limit. It returns how long that took.
func (p *Process) Stop(s syscall.Signal, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	if err := p.Signal(s); err != nil {
		return 0, err
	}
	select {
	case <-p.ended:
		return time.Since(began), nil
	case <-time.After(limit):
		return 0, p.explain(fmt.Errorf("the process is still running %v after %v", limit, s))
	}
}

// retryDelay is how long Until waits between attempts: short compared with the measured times,
// and long enough to leave the CPU to the process.
const retryDelay = 300 * time.Microsecond

// Until calls try until it succeeds, the process ends or the limit is reached, for which the
// error is a Late. Event is the name of the awaited event in errors.
func (p *Process) Until(limit time.Duration, event string, try func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(retryDelay) {
		err := try()
		if err == nil {
			return nil
		}
		if ended := p.Alive(); ended != nil {
			return fmt.Errorf("wait for %s: %w", event, ended)
		}
		if time.Now().After(deadline) {
			return p.explain(Late{What: event, Limit: limit, Last: err})
		}
	}
}

// Logs waits until a complete line contains all of the words, and returns it.
func (p *Process) Logs(limit time.Duration, words ...string) (found Line, err error) {
	err = p.Until(limit, fmt.Sprintf("a log line with %q", words), func() error {
		lines := p.Log.Lines(words...)
		if len(lines) == 0 {
			return errors.New("no such line")
		}
		found = lines[0]
		return nil
	})
	return found, err
}

// Late is the error of an event that did not happen in time.
type Late struct {
	What  string
	Limit time.Duration
	Last  error // of the last attempt
}

// Error implements error.
func (l Late) Error() string { return fmt.Sprintf("%s: not within %v: %v", l.What, l.Limit, l.Last) }

// Run runs a command on a host, and returns its output and exit code. It kills a command that
// takes longer than limit, and then returns the code -1.
func Run(host *lab.Host, limit time.Duration, cmd *exec.Cmd) (out string, code int, err error) {
	p, err := Start(host, cmd)
	if err != nil {
		return "", 0, err
	}
	timer := time.AfterFunc(limit, func() { _ = p.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	<-p.ended
	if _, failed := errors.AsType[*exec.ExitError](p.err); p.err != nil && !failed {
		return p.Log.String(), -1, p.err
	}
	return p.Log.String(), cmd.ProcessState.ExitCode(), nil
}
