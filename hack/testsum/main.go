// Command testsum runs the steps of a test run one after another, prints the
// progress, and ends with the sum of all steps:
//
//	sluice: 812 passed, 0 failed, 2 skipped
//
// usage: testsum "name: command" ...
//
// A shell runs each command. testsum reads the format of go test -json: it prints
// packages when they end, and the output of failed tests. A step without such
// output counts as one test, by its exit status. Attributes of tests with a key TABLE/ROW are
// printed as tables at the end. All steps run, also after a
// failure; the exit status is 1 if one failed. docs/decisions/0026 explains why
// this is not gotestsum.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	steps, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	sum := newSummary(os.Stdout)
	for _, s := range steps {
		fmt.Printf("=== %s: %s\n", s.name, s.command)
		if err := s.run(sum); err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(1)
		}
	}
	sum.print()
	if sum.failed > 0 {
		os.Exit(1)
	}
}

// step is a command with a name.
type step struct{ name, command string }

func parse(args []string) ([]step, error) {
	if len(args) == 0 {
		return nil, errors.New(`no steps, want "name: command" for each`)
	}
	steps := make([]step, 0, len(args))
	for _, arg := range args {
		name, command, ok := strings.Cut(arg, ": ")
		if !ok || name == "" || strings.TrimSpace(command) == "" {
			return nil, fmt.Errorf("%q is not of the form \"name: command\"", arg)
		}
		steps = append(steps, step{name, command})
	}
	return steps, nil
}

// run runs the command and adds its tests to the summary, also a failure of the
// command. It returns an error only if the command could not be run.
func (s step) run(sum *summary) error {
	cmd := exec.Command("sh", "-c", s.command)
	r, w, err := os.Pipe() // closed by the last process that has it
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return fmt.Errorf("run sh: %w", err)
	}
	sum.begin(s.name)
	readErr := s.read(r, sum)
	_ = r.Close()
	err = cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return fmt.Errorf("wait for %s: %w", s.name, err)
	}
	sum.end(err)
	return readErr
}

func (s step) read(r io.Reader, sum *summary) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			sum.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output of %s: %w", s.name, err)
		}
	}
}
