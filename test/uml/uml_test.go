//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

func TestRelay(t *testing.T) {
	for _, tt := range []struct {
		name, written string
		code          int
		passed, wrong string
	}{
		{"passed", "PASS\n\n" + exitMark + "0\n", 0, "PASS\n\n", ""},
		{"failed", "FAIL\n\n" + exitMark + "1\n", 1, "FAIL\n\n", ""},
		{"died", "=== RUN A\nhalf a li", 0, "=== RUN A\nhalf a li", "the guest ended before its command"},
		{"died as it reported", "PASS\n\n" + exitMark, 0, "PASS\n\n" + exitMark, "the guest ended before its command"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var to bytes.Buffer
			code, err := relay(strings.NewReader(tt.written), &to)
			wrong := ""
			if err != nil {
				wrong = err.Error()
			}
			if code != tt.code || to.String() != tt.passed || wrong != tt.wrong {
				t.Errorf("got %d, %q, %q; want %d, %q, %q", code, &to, wrong, tt.code, tt.passed, tt.wrong)
			}
		})
	}
}

// The parts have each scenario once.
func TestParts(t *testing.T) {
	for n := range 400 {
		name, found := fmt.Sprintf("S-%03d", n), 0
		for _, part := range parts() {
			if regexp.MustCompile(part).MatchString(name) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s is in %d parts", name, found)
		}
	}
}

// A run without a test that passed is a failure: a pattern that matches nothing passes, as
// does a test all of whose subtests a pattern excludes.
func TestOnlyTestsOfTheDepthOfThePatternCount(t *testing.T) {
	const out = "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.10s)\n    \x16--- PASS: TestA/b/c (0.00s)\n" +
		"    --- SKIP: TestA/b/d (0.00s)\n    --- FAIL: TestA/b/e (0.00s)\ntalk of --- PASS: TestA/b/f (0.00s)\nPASS\n"
	for run, want := range map[string]int{"TestA": 2, "TestA/b": 1, "TestA/./c": 1, "TestA/././d": 0} {
		var to bytes.Buffer
		passed := &tally{to: &to, depth: job{run: run}.depth()}
		if _, err := relay(strings.NewReader(out+exitMark+"0\n"), passed); err != nil ||
			passed.count != want || to.String() != out {
			t.Errorf("-run %s: %d passed, %v, want %d; the output is %q", run, passed.count, err, want, &to)
		}
	}
}

func TestOnlyAnotherProcessorIsAReasonToSkip(t *testing.T) {
	for arch, want := range map[string]string{
		"amd64": "", "arm64": "no older kernel: user mode Linux is for x86_64, this machine is arm64",
	} {
		if got := unsupported(arch); got != want {
			t.Errorf("%s: %q, want %q", arch, got, want)
		}
	}
	missing := t.TempDir() + "/linux"
	if path, err := find(missing); err == nil || !strings.Contains(err.Error(), "make test-kernel") ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("without a kernel: %q, %v", path, err)
	}
}

// kernel returns the kernel that hack/test-kernel.sh built.
func kernel(t *testing.T) string {
	t.Helper()
	if reason := unsupported(runtime.GOARCH); reason != "" {
		t.Skip(reason)
	}
	path, err := find(cmp.Or(os.Getenv("TEST_KERNEL"), "../../.cache/test-kernel") + "/linux")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// program builds this program without the race detector, which does not work in a guest.
func program(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/uml"
	if err := harness.Build(path, "."); err != nil {
		t.Fatal(err)
	}
	return path
}

// newGuest returns a guest that runs a shell script.
func newGuest(t *testing.T, script string) guest {
	t.Helper()
	all, err := processors()
	if err != nil {
		t.Fatal(err)
	}
	return guest{all[0], idleClock, kernel(t), []string{"/", "/bin/sh", "-c", script}}
}

// runScript runs a shell script in a guest, and returns its output and error.
func runScript(ctx context.Context, t *testing.T, script string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := guestCommand(ctx, program(t), newGuest(t, script))
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	code, err := relay(r, &out)
	_ = r.Close()
	_ = cmd.Wait()
	if err == nil && code != 0 {
		err = errors.New("exited with a code other than 0")
	}
	return out.String(), err
}

// The whole program fails if there is no kernel, or if no test ran on it.
func TestWithoutATestTheProgramFails(t *testing.T) {
	path := program(t)
	for _, tt := range []struct{ name, kernel, pattern, wants string }{
		{"no kernel", t.TempDir() + "/linux", "Count", "no older kernel, so nothing was tested on it"},
		{"no test", kernel(t), "NoSuchTest", "no test passed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, "-kernel", tt.kernel, "-run", tt.pattern, "./internal/text")
			cmd.Dir = "../.."
			out, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(string(out), tt.wants) {
				t.Errorf("got %v, want a failure with %q:\n%s", err, tt.wants, out)
			}
		})
	}
}

// A guest can read the files of this machine, but not change them.
func TestAGuestChangesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	path := t.TempDir() + "/file"
	if err := os.WriteFile(path, []byte("here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runScript(ctx, t,
		"cat "+path+"; mount -o remount,rw /; echo there >"+path+" || echo refused; id -u; ls /proc/1/ns >/dev/null")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"here\n", "refused\n", "0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the guest prints\n%s\nwant %q in it", out, want)
		}
	}
	if now, err := os.ReadFile(path); string(now) != "here\n" {
		t.Errorf("the file holds %q, %v", now, err)
	}
}

// The processes of the kernel end with the process that started it.
func TestAGuestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := guestCommand(ctx, program(t), newGuest(t, "echo up; sleep 1000 & sleep 1000"))
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if _, err := io.ReadFull(r, make([]byte, 2)); err != nil {
		t.Fatalf("the guest does not boot: %v", err)
	}
	cancel()
	_ = cmd.Wait()
	// Every process of the guest has the pipe open, so it is closed when the last one ends.
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, r) // until every process has closed the other end
	}()
	select {
	case <-rest:
	case <-time.After(time.Minute):
		out, _ := exec.Command("ps", "ax").CombinedOutput()
		t.Errorf("processes of the guest are still running:\n%s", out)
	}
}
