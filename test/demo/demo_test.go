//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
)

// binaries are the programs, built like `make demo`.
type binaries struct{ demo, sluice string }

func build(t *testing.T) binaries {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the demo")
	}
	dir := t.TempDir()
	b := binaries{filepath.Join(dir, "sluice-demo"), filepath.Join(dir, "sluice")}
	for out, pkg := range map[string]string{b.demo: ".", b.sluice: "../../cmd/sluice"} {
		if err := harness.Build(out, pkg); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// command returns the command of the demo, which prints to out.
func (b binaries) command(sluice string, out *bytes.Buffer) *exec.Cmd {
	cmd := exec.Command(b.demo, "-sluice", sluice, "-examples", examples)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func TestDemo(t *testing.T) {
	b := build(t)
	var out bytes.Buffer
	start := time.Now()
	if err := b.command(b.sluice, &out).Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("%v\n%s", time.Since(start), &out)
	for _, want := range []string{
		"lost 0", "0 changes", "nothing is left", "In short", "All of it shown",
		"removed the rules of kube-proxy", "table ip kube-proxy with", "Connections did what explain says",
		"is the same", "foreign-edit", "in kube-proxy's chains", "-j KUBE-SVC-", "-t nat -F",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	printed := shape(out.String())
	for _, line := range transcript(t) {
		if !strings.Contains(printed, shape(line)) {
			t.Errorf("the README has a line that the demo does not print, with any numbers: %s", line)
		}
	}
	if strings.Contains(out.String(), "It had warned") {
		t.Error("there are warnings")
	}
	if strings.ContainsAny(out.String(), "\x1b✗") {
		t.Error("escape codes or failures in a log")
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
			t.Errorf("%d wide: %s", n, line)
		}
	}
}

func TestDemoCannotRun(t *testing.T) {
	b := build(t)
	refuses := filepath.Join(t.TempDir(), "sluice")
	script := "#!/bin/sh\necho 'sluice: missing kernel feature: load it with: modprobe nf_tables' >&2\nexit 1\n"
	if err := os.WriteFile(refuses, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for sluice, want := range map[string]string{
		refuses:             "modprobe nf_tables",
		"/nonexistent/file": "make demo",
	} {
		var out bytes.Buffer
		err := b.command(sluice, &out).Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitCannot {
			t.Errorf("%s: %v, want exit code %d", sluice, err, exitCannot)
		}
		if !strings.Contains(out.String(), "cannot run here") || !strings.Contains(out.String(), want) {
			t.Errorf("nothing about %q:\n%s", want, &out)
		}
	}
}

// The sluice process ends with the demo, even if that is killed.
func TestDemoStopped(t *testing.T) {
	b := build(t)
	for signal, want := range map[unix.Signal]int{unix.SIGINT: exitInterrupted, unix.SIGTERM: exitInterrupted, unix.SIGKILL: -1} {
		t.Run(signal.String(), func(t *testing.T) {
			var out bytes.Buffer
			cmd := b.command(b.sluice, &out)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "sluice runs", func() bool { return len(processesOf(t, b.sluice)) > 0 })
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code is checked below
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Errorf("exit code %d, want %d\n%s", got, want, &out)
			}
			waitUntil(t, "all is gone", func() bool { return len(processesOf(t, b.sluice))+len(processesOf(t, b.demo)) == 0 })
		})
	}
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("not within ten seconds: %s", what)
}

// processesOf returns the processes that run a program.
func processesOf(t *testing.T, program string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, exe := range all {
		if target, err := os.Readlink(exe); err == nil && target == program {
			out = append(out, exe)
		}
	}
	return out
}
