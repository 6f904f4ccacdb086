package bpf

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

const self = "/proc/self/exe"

// selfTestOptions are those of a node with a cgroup and a bpffs of its own.
func selfTestOptions(t *testing.T) Options {
	t.Helper()
	kerneltest.NeedPrograms(t)
	return Options{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t), Program: self}
}

// noProbes verifies that a cgroup has no cgroup of a test.
func noProbes(t *testing.T, cgroup string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(cgroup, groupPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v", left, err)
	}
}

// Try balances a process in another cgroup, by TCP and UDP, and leaves no cgroup.
func TestTry(t *testing.T) {
	o := selfTestOptions(t)
	began := time.Now()
	if err := Try(o); err != nil {
		t.Error(err)
	}
	t.Logf("took %s", time.Since(began))
	noProbes(t, o.Cgroup)
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", o.Dir, err)
	}
}

// Try detects programs without effect, for each way to use a Service.
func TestTryNoticesFailures(t *testing.T) {
	o := selfTestOptions(t)
	all := []string{"tcp/192.0.0.8:53: dial", "connected-udp/192.0.0.8:53: dial", "udp/192.0.0.8:53: write", "tcp/[100::8]:53: dial", "udp/[100::8]:53: write"}
	for name, c := range map[string]struct {
		attach bool
		add    func(*selfTest) func(check) error
		want   []string
	}{
		"not attached":     {add: func(tr *selfTest) func(check) error { return tr.addService }, want: all},
		"without Services": {attach: true, add: func(*selfTest) func(check) error { return func(check) error { return nil } }, want: all},
		"without UDP": {attach: true, want: []string{"udp/192.0.0.8:53"}, add: func(tr *selfTest) func(check) error {
			return func(c check) error {
				if c.protocol == unix.IPPROTO_UDP {
					return nil
				}
				return tr.addService(c)
			}
		}},
		"another backend": {attach: true, want: []string{"tcp/192.0.0.8:53: dial tcp 192.0.0.8:53: connect: connection refused"}, add: func(tr *selfTest) func(check) error {
			return func(c check) error {
				c.stop()
				return tr.addService(c)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := newSelfTest(o)
			if err != nil {
				t.Fatal(err)
			}
			defer tr.close()
			if c.attach {
				if err := tr.attach(); err != nil {
					t.Fatal(err)
				}
			}
			err = tr.run(c.add(tr))
			if !errors.Is(err, ErrUnbalanced) {
				t.Fatalf("it returns %v, want %v", err, ErrUnbalanced)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it returns %q, want %q", err, want)
				}
			}
		})
	}
	noProbes(t, o.Cgroup)
}

// A test that lacks time or resources proves nothing.
func TestProofs(t *testing.T) {
	for text, c := range map[string]struct {
		err  error
		want bool
	}{
		"refused":       {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}, true},
		"no ports left": {&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", unix.EADDRINUSE)}, false},
		"a deadline":    {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, false},
		"another reply": {errors.New("another program replies"), true},
	} {
		if is := isProof(c.err); is != c.want {
			t.Errorf("%s: %t, want %t", text, is, c.want)
		}
	}
	_, err := (&net.Dialer{Timeout: time.Nanosecond}).Dial("tcp", "127.0.0.1:1")
	if err == nil || isProof(err) {
		t.Errorf("a dial that times out is a proof: %v", err)
	}
}

// A process that does not start or report proves nothing, and is not waited for without end.
func TestTryWithoutProcess(t *testing.T) {
	o := selfTestOptions(t)
	slow := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	for name, program := range map[string]string{"no such program": "/run/none", "says nothing": "/bin/true", "fails": "/bin/false", "slow": slow} {
		t.Run(name, func(t *testing.T) {
			o.Program = program
			began := time.Now()
			if err := Try(o); !errors.Is(err, ErrUntested) {
				t.Errorf("it returns %v, want %v", err, ErrUntested)
			}
			if took := time.Since(began); took > machine.Scale(3*selfTestTimeout) {
				t.Errorf("it took %s", took)
			}
			noProbes(t, o.Cgroup)
		})
	}
}

// Try removes the cgroups of a self-test that was killed, but not those of a running one.
func TestStaleGroupsAreRemoved(t *testing.T) {
	o := selfTestOptions(t)
	stale := filepath.Join(o.Cgroup, groupPrefix+"stale")
	if err := errors.Join(os.Mkdir(stale, 0o755), os.Mkdir(filepath.Join(stale, groupPrefix+"below"), 0o755)); err != nil {
		t.Fatal(err)
	}
	running, err := newGroup(o.Cgroup)
	if err != nil {
		t.Fatal(err)
	}
	if err := Try(o); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", stale, err)
	}
	if _, err := os.Stat(running.path); err != nil {
		t.Error(err)
	}
	running.remove()
	noProbes(t, o.Cgroup)
}
