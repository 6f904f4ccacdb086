//go:build linux

// Package wine runs Windows programs in tests, by Wine. It makes a folder in which Wine keeps its Windows, adds
// functions that Go programs need and this Wine may lack, and ends every process of Wine with the test, even if the
// test is killed: they are in a PID namespace of their own.
//
// Tests call Main from TestMain.
package wine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// loader is Wine itself: Debian's package wine64 has no program in the search path.
const loader = "/usr/lib/wine/wine64"

// server is the process that all programs of a Windows share. It ends a little after them.
const server = "/usr/lib/wine/wineserver64"

// compiler makes Windows libraries.
const compiler = "x86_64-w64-mingw32-gcc"

const (
	setUpTimeout = 3 * time.Minute
	runTimeout   = time.Minute
)

// Main runs the tests in new namespaces and exits, after checks. It is for TestMain.
func Main(m *testing.M, checks ...func() error) { harness.Main(m, append(checks, installed)...) }

// installed returns an error if Wine or the compiler is missing.
func installed() error {
	for _, program := range []string{loader, server, compiler} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("run `make setup-rest`, which installs Wine and a compiler for Windows: %w", err)
		}
	}
	return nil
}

// Prefix is a Windows with its processes.
type Prefix struct {
	t      testing.TB
	folder string // in which programs run
	env    []string
	space  *space
}

// New returns a Windows, which ends with the test. It takes some 10 seconds: tests share it, by For.
func New(t testing.TB) *Prefix {
	t.Helper()
	folder := t.TempDir()
	s, err := newSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close) // before the folder is removed
	p := &Prefix{t: t, folder: folder, space: s, env: append(os.Environ(),
		"WINEPREFIX="+filepath.Join(folder, "prefix"), "WINEDEBUG=-all",
		"WINEDLLOVERRIDES=mscoree,mshtml,winemenubuilder.exe=", // no .NET, no browser, no icons on a desktop
		"HOME="+folder, "TMPDIR="+folder, "DISPLAY=")}
	ctx, cancel := context.WithTimeout(t.Context(), setUpTimeout)
	defer cancel()
	if r := p.run(ctx, loader, "wineboot", "--init"); r.Code != 0 {
		t.Fatalf("set up Wine: status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	// The first service manager has an environment from before the registry was filled: in it no service starts.
	if r := p.run(ctx, server, "--wait"); r.Code != 0 {
		t.Fatalf("set up Wine: %+v", r)
	}
	p.hold()
	library := filepath.Join(folder, "prefix", "drive_c", "windows", "system32", "bcryptprimitives.dll")
	if _, err := os.Stat(library); errors.Is(err, os.ErrNotExist) { // newer ones have it
		p.compile(library, "testdata/bcryptprimitives.c", "-ladvapi32")
	}
	return p
}

// For returns the same Windows for a subtest. Programs that the subtest starts end with it.
func (p *Prefix) For(t testing.TB) *Prefix {
	shared := *p
	shared.t = t
	return &shared
}

// compile makes a Windows library of a C file.
func (p *Prefix) compile(library, source string, flags ...string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), compiler, append([]string{"-shared", "-o", library, source}, flags...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("compile %s: %v\n%s", source, err, out)
	}
}

// Build builds a Go package of this module for Windows, once, and returns the program.
func (p *Prefix) Build(pkg string) string {
	p.t.Helper()
	program := filepath.Join(p.folder, filepath.Base(pkg)+".exe")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.CommandContext(p.t.Context(), "go", "build", "-trimpath", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("build %s for Windows: %v\n%s", pkg, err, out)
	}
	return program
}

// Path returns the name that a file has for Windows programs.
func Path(file string) string { return "Z:" + filepath.FromSlash(file) }

// Result is the outcome of a program.
type Result struct {
	Code           int // exit status; -1 if it did not end in time
	Stdout, Stderr string
}

// Run runs a program to its end, a minute at most. It tries again if Wine could not start the program, as on a busy
// machine, and logs that.
func (p *Prefix) Run(program string, args ...string) (r Result) {
	p.t.Helper()
	const attempts = 3
	for range attempts {
		ctx, cancel := context.WithTimeout(p.t.Context(), runTimeout)
		r = p.run(ctx, append([]string{loader, program}, args...)...)
		cancel()
		if !r.notStarted() {
			break
		}
		p.t.Logf("Wine did not start %s %q: %+v", program, args, r)
	}
	return r
}

// notStarted reports whether Wine's start.exe failed in place of the program. It names the error, or ends with status 1
// without output, as programs of these tests never do.
func (r Result) notStarted() bool {
	silent := r.Code == 1 && r.Stdout == "" && r.Stderr == ""
	return silent || strings.Contains(r.Stdout, "ShellExecuteEx failed: Internal error")
}

func (p *Prefix) run(ctx context.Context, command ...string) Result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	process, err := p.start(&stdout, &stderr, command)
	if err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-process.done:
	case <-ctx.Done():
		process.Kill()
		return Result{-1, stdout.String(), stderr.String() + fmt.Sprintf("%v: killed\n", context.Cause(ctx))}
	}
	return Result{process.cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Start starts a program that writes its output to a writer. It is killed at the end of the test.
func (p *Prefix) Start(output io.Writer, program string, args ...string) *Process {
	p.t.Helper()
	process, err := p.start(output, output, append([]string{loader, program}, args...))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(process.Kill)
	return process
}

// hold keeps Windows running until the end of the test: without a program it ends, and forgets its state until it
// starts again.
func (p *Prefix) hold() {
	p.t.Helper()
	input, output, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(loader, "cmd")
	cmd.Dir, cmd.Env, cmd.Stdin = p.folder, p.env, input
	err = errors.Join(p.space.start(cmd), input.Close())
	p.t.Cleanup(func() { _ = output.Close() }) // which ends cmd
	if err != nil {
		p.t.Fatalf("start cmd: %v", err)
	}
	go func() { _ = cmd.Wait() }()
}

func (p *Prefix) start(stdout, stderr io.Writer, command []string) (*Process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.folder, p.env, stdout, stderr
	cmd.WaitDelay = time.Second // servers of Wine keep its output open
	if err := p.space.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	process := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(process.done)
		_ = cmd.Wait() // ProcessState has the status
	}()
	return process, nil
}

// Process is a program that runs.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Kill ends the program, as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}
