package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// finishTime is how long a program that changes tables may run after the context has ended. It is shorter than the 30
// s that Kubernetes and the systemd unit give the daemon to stop.
const finishTime = 20 * time.Second

const (
	outputTime = 5 * time.Second // for output to end when a program has ended
	maxStderr  = 8 << 10         // bytes of stderr that are kept
)

// call is one run of a program.
type call struct {
	path    string
	args    []string
	input   []byte
	output  func(io.Reader) error // reads stdout; nil: it is discarded
	started func(pid int) func()  // called before it gets input; the returned function is called when it has ended

	// finish is how long it may run after the context ended; 0: it is killed at once.
	finish time.Duration
}

// failure is a program that ended with an error.
type failure struct {
	code   int // of its exit; -1: a signal
	stderr string
}

func (f *failure) Error() string {
	if text := strings.Join(strings.Fields(f.stderr), " "); text != "" {
		return text
	}
	return fmt.Sprintf("ended with code %d", f.code)
}

// run runs a program in the namespace and waits for its end, unless the context has ended before. A child inherits the
// namespace of the thread that starts it. It is killed when that thread ends, and so when this process is killed: its
// input would be out of date. A signal to the process group of this process, such as Ctrl-C, does not reach it.
func (t *Tools) run(ctx context.Context, c call) error {
	if ctx.Err() != nil {
		return fmt.Errorf("run %s: %w", filepath.Base(c.path), context.Cause(ctx))
	}
	return netns.Do(t.opts.NetNS, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		program := filepath.Base(c.path)
		cmd := exec.CommandContext(ctx, c.path, c.args...)
		cmd.Env = t.opts.environment()
		cmd.WaitDelay = outputTime
		if c.finish > 0 {
			cmd.WaitDelay = c.finish
			cmd.Cancel = func() error { return os.ErrProcessDone } // it may end by itself within WaitDelay
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		stderr := &limited{room: maxStderr}
		cmd.Stderr = stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("run %s: %w", program, err)
		}
		var stdout io.ReadCloser
		if c.output != nil {
			if stdout, err = cmd.StdoutPipe(); err != nil {
				return fmt.Errorf("run %s: %w", program, err)
			}
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("run %s: %w", program, err)
		}
		if c.started != nil {
			defer c.started(cmd.Process.Pid)()
		}
		_, _ = stdin.Write(c.input) // if the program does not read, its error follows
		_ = stdin.Close()
		var outErr error
		if c.output != nil {
			outErr = c.output(stdout)
			_, _ = io.Copy(io.Discard, stdout) // the rest, or the program waits for a reader
		}
		if err := explain(ctx, cmd.Wait(), stderr.String()); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		if outErr != nil {
			return fmt.Errorf("parse the output of %s: %w", program, outErr)
		}
		return nil
	})
}

// explain returns the error of a run.
func explain(ctx context.Context, err error, stderr string) error {
	exit, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	case isExit:
		return &failure{code: exit.ExitCode(), stderr: stderr}
	}
	return err
}

// limited keeps only the first bytes that are written.
type limited struct {
	bytes.Buffer
	room int
}

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:min(len(b), l.room-l.Len())])
	return len(b), nil
}
