//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// job is the tests of a package that match run.
type job struct {
	pkg, run string
	plane    string // that the tests are about; empty: several
	env      string // a variable of the tests, NAME=VALUE; may be empty
}

// name returns the package name in the output, with the parts of run that select tests.
func (j job) name() string {
	parts := []string{"linux-6.1/" + strings.TrimPrefix(j.pkg, "./")}
	for _, part := range strings.Split(j.run, "/")[1:] {
		if part != anyTest {
			parts = append(parts, strings.Trim(part, "^$()"))
		}
	}
	return strings.Join(parts, ":")
}

// depth returns how many levels of subtests run selects.
func (j job) depth() int { return strings.Count(j.run, "/") }

// anyTest is a part of job.run that matches every test.
const anyTest = "."

// test is a job with its test binary.
type test struct {
	job
	binary, dir string // dir is the folder of the package
}

// compile builds a test binary of each package, once. They are static and without the race
// detector, which needs more memory than the guest has.
func compile(ctx context.Context, dir string, jobs []job) ([]test, error) {
	made := map[string]string{}
	var tests []test
	for _, j := range jobs {
		binary, ok := made[j.pkg]
		if !ok {
			binary = filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(j.pkg, "./"), "/", "_")+".test")
			cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-o", binary, j.pkg)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("compile the tests of %s: %w\n%s", j.pkg, err, out)
			}
			made[j.pkg] = binary
		}
		abs, err := filepath.Abs(j.pkg)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", j.pkg, err)
		}
		tests = append(tests, test{j, binary, abs})
	}
	return tests, nil
}

// runInGuest runs a test in a guest on a processor and prints its output. It returns nil if all tests passed.
func (t test) runInGuest(ctx context.Context, kernel string, processor int, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	convert := exec.Command("go", "tool", "test2json", "-t", "-p", t.name())
	text, err := convert.StdinPipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	events, err := convert.StdoutPipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	if err := convert.Start(); err != nil {
		return fmt.Errorf("run test2json: %w", err)
	}
	var shown sync.WaitGroup
	shown.Go(func() { out.copy(events) })
	passed := &tally{to: text, depth: t.depth()}
	failed := guest{processor, idleClock, kernel, t.command(os.Getenv)}.run(ctx, passed)
	if failed == nil && passed.count == 0 {
		failed = fmt.Errorf("no test passed: none matches -run %q, or all were skipped", t.run)
	}
	if failed != nil {
		fmt.Fprintf(text, "%v\nFAIL\n", failed) // after the output of the tests, so that it decides
	}
	_ = text.Close()
	shown.Wait()
	return errors.Join(failed, convert.Wait())
}

// run boots the guest, writes the output of its command to text, and returns an error unless the command exited with 0.
func (g guest) run(ctx context.Context, text io.Writer) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	var console bytes.Buffer
	cmd := guestCommand(ctx, self, g)
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	code, read := relay(r, text)
	_ = cmd.Wait() // the exit code comes from the guest
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the guest was killed: %w", context.Cause(ctx))
	case read != nil:
		return fmt.Errorf("%w (%s); its console:\n%s", read, cmd.ProcessState, &console)
	case code != 0:
		return fmt.Errorf("the command exited with %d", code)
	}
	return nil
}

// command returns the command of a guest: the tests, in the environment of the guest and with
// variables by which they find programs.
func (t test) command(getenv func(string) string) []string {
	command := append([]string{t.dir, "/usr/bin/env", kerneltest.CompleteVar + "=1"}, environment(getenv)...)
	if t.env != "" {
		command = append(command, t.env)
	}
	return append(append(command, t.binary), t.args()...)
}

// args returns the arguments of the test binary. A guest has one processor, and because of its
// clock waiting takes no time and a timeout of the tests has no effect.
func (t test) args() []string {
	return []string{
		"-test.v=test2json", "-test.parallel=1", "-test.run=" + t.run,
		"-test.timeout=0",
	}
}

// exitMark begins the last line of a guest, before the exit code of the tests.
const exitMark = "uml: the command exited with "

// relay copies the output of a guest up to the line with the exit code, which it returns.
func relay(from io.Reader, to io.Writer) (int, error) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if number, ok := strings.CutPrefix(line, exitMark); ok && err == nil {
			return strconv.Atoi(strings.TrimSpace(number))
		}
		if _, err := io.WriteString(to, line); err != nil {
			return 0, fmt.Errorf("write the output: %w", err)
		}
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the guest ended before its command")
		}
		if err != nil {
			return 0, fmt.Errorf("read from the guest: %w", err)
		}
	}
}
