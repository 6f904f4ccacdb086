//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
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

func TestPack(t *testing.T) {
	want := []string{"/dir with space", "/a.test", "-test.run=^A$/b \"c\"", ""}
	got, err := unpack(pack(want))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"", "xyz", pack([]string{"alone"})} {
		if got, err := unpack(bad); err == nil {
			t.Errorf("unpack(%q) = %q, want an error", bad, got)
		}
	}
}

func TestVariablesHaveAbsolutePaths(t *testing.T) {
	work, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got := environment(func(name string) string {
		return map[string]string{"KUBE_PROXY": "bin/kube-proxy", "KUBEBUILDER_ASSETS": "", "HOME": "/root"}[name]
	})
	if want := []string{"KUBE_PROXY=" + work + "/bin/kube-proxy"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnknownClock(t *testing.T) {
	if err := runProgram(t.Context(), "linux", "lunar", []string{"./test/bench"}); err == nil || !strings.Contains(err.Error(), `"lunar"`) {
		t.Errorf("got %v", err)
	}
}

func TestNamesOfJobs(t *testing.T) {
	var got []string
	for _, j := range append(jobs(), job{"./internal/route", ""}) {
		got = append(got, j.name())
	}
	const base = "linux-6.1/test/conformance:"
	want := []string{
		base + "iptables-legacy:IPv6", base + "iptables-legacy:IPv4|dual-stack",
		base + "iptables-nft:IPv6", base + "iptables-nft:IPv4|dual-stack",
		base + "ipvs:IPv6", base + "ipvs:IPv4|dual-stack",
		base + "nftables:IPv6", base + "nftables:IPv4|dual-stack",
		base + "ebpf:" + socketScenarios + ":IPv6", base + "ebpf:" + socketScenarios + ":IPv4|dual-stack",
		"linux-6.1/internal/forward", "linux-6.1/internal/kernel/bpf", "linux-6.1/test/takeover", "linux-6.1/internal/plane/ipvs",
		base + "userspace:S-005|S-107|S-110|S-205|S-274|S-309|S-310|S-311",
		"linux-6.1/internal/plane/ebpf",
		"linux-6.1/internal/kernel/ipvs", "linux-6.1/internal/kernel/link", "linux-6.1/internal/kernel/probe", "linux-6.1/internal/follow/sockets",
		"linux-6.1/internal/app", "linux-6.1/internal/takeover", "linux-6.1/internal/plane/userspace",
		"linux-6.1/test/bench", "linux-6.1/test/bench/balance",
		"linux-6.1/internal/route",
	}
	if !slices.Equal(got, want) {
		t.Errorf("jobs are %q, want %q", got, want)
	}
}

// A run without a test that passed is a failure: a pattern that matches nothing passes, as
// does a test all of whose subtests a pattern excludes.
func TestOnlyTestsOfTheDepthOfThePatternCount(t *testing.T) {
	const out = "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.10s)\n    \x16--- PASS: TestA/b/c (0.00s)\n" +
		"    --- SKIP: TestA/b/d (0.00s)\n    --- FAIL: TestA/b/e (0.00s)\ntalk of --- PASS: TestA/b/f (0.00s)\nPASS\n"
	for run, want := range map[string]int{"TestA": 2, "TestA/b": 1, "TestA/./c": 1, "TestA/././d": 0} {
		var to bytes.Buffer
		passed := &tally{to: &to, depth: job{"./x", run}.depth()}
		if _, err := relay(strings.NewReader(out+exitMark+"0\n"), passed); err != nil || passed.count != want || to.String() != out {
			t.Errorf("-run %s: %d passed, %v, want %d; the output is %q", run, passed.count, err, want, &to)
		}
	}
}

func TestTestsGetTheProgramsAndAreToldThatTheKernelIsComplete(t *testing.T) {
	getenv := func(name string) string {
		return map[string]string{"KUBEBUILDER_ASSETS": "/assets", "OTHER": "x"}[name]
	}
	got := test{job{"./a", "B"}, "/a.test", "/a"}.command(getenv)
	want := []string{
		"/a", "/usr/bin/env", kerneltest.CompleteVar + "=1", "KUBEBUILDER_ASSETS=/assets",
		"/a.test", "-test.v=test2json", "-test.parallel=1", "-test.run=B", "-test.timeout=0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOnlyAnotherProcessorIsAReasonToSkip(t *testing.T) {
	for arch, want := range map[string]string{"amd64": "", "arm64": "no older kernel: user mode Linux is for x86_64, this machine is arm64"} {
		if got := unsupported(arch); got != want {
			t.Errorf("%s: %q, want %q", arch, got, want)
		}
	}
	missing := t.TempDir() + "/linux"
	if path, err := find(missing); err == nil || !strings.Contains(err.Error(), "make test-kernel") || !strings.Contains(err.Error(), missing) {
		t.Errorf("without a kernel: %q, %v", path, err)
	}
}

func TestSkipsHaveTheReason(t *testing.T) {
	var out bytes.Buffer
	(&output{w: &out}).skip(job{"./test/conformance", "TestConformance/^nftables$"}, "no older kernel")
	for _, want := range []string{`"Action":"skip"`, `no older kernel\n`, `"Package":"linux-6.1/test/conformance:nftables"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %s", &out, want)
		}
	}
}

func TestStayOnOneProcessor(t *testing.T) {
	all, err := processors()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		now := make(chan []int)
		go func() { // the thread ends with the goroutine
			if err := bindTo(n); err != nil {
				t.Error(err)
			}
			left, _ := processors()
			now <- left
		}()
		if left := <-now; !slices.Equal(left, []int{n}) {
			t.Errorf("bound to processor %d, it may use %v", n, left)
		}
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

// program builds this program without the race detector, which does not work in a
// guest.
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
	out, err := runScript(ctx, t, "cat "+path+"; mount -o remount,rw /; echo there >"+path+" || echo refused; id -u; ls /proc/1/ns >/dev/null")
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
