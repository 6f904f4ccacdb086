package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

const (
	patience  = 5 * time.Second // for output to end when a program has ended
	maxStderr = 8 << 10         // bytes that are kept of what a program complains about
)

// call is one run of a program.
type call struct {
	path    string
	args    []string
	input   []byte
	output  func(io.Reader) error // reads what it prints; nil: nobody does
	started func(pid int) func()  // called before it gets input; what it returns, when it has ended
}

// failure is a program that ended with an error.
type failure struct {
	code int // of its exit; -1: a signal
	said string
}

func (f *failure) Error() string {
	if said := strings.Join(strings.Fields(f.said), " "); said != "" {
		return said
	}
	return fmt.Sprintf("ended with code %d", f.code)
}

// run runs a program in the namespace and waits for its end. A child is made by
// the thread that asks for it, and is in that thread's namespace. It ends with the
// thread, and so with this process, however that ends: what it would still write
// would be out of date. Being killed leaves nothing half.
func (t *Tools) run(ctx context.Context, c call) error {
	return netns.Do(t.opts.NetNS, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		program := filepath.Base(c.path)
		cmd := exec.CommandContext(ctx, c.path, c.args...)
		cmd.Env = t.opts.environment()
		cmd.WaitDelay = patience
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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
		_, _ = stdin.Write(c.input) // a program that does not read says why below
		_ = stdin.Close()
		var outErr error
		if c.output != nil {
			outErr = c.output(stdout)
			_, _ = io.Copy(io.Discard, stdout) // what was not understood, or the program waits for a reader
		}
		if err := explain(ctx, cmd.Wait(), stderr.String()); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		if outErr != nil {
			return fmt.Errorf("understand %s: %w", program, outErr)
		}
		return nil
	})
}

// explain says how a run ended.
func explain(ctx context.Context, err error, said string) error {
	exit, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	case isExit:
		return &failure{code: exit.ExitCode(), said: said}
	}
	return err
}

// limited keeps the beginning of what is written.
type limited struct {
	bytes.Buffer
	room int
}

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:min(len(b), l.room-l.Len())])
	return len(b), nil
}
