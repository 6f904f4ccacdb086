//go:build linux

package harness

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Until returns in every case, with an error that names the event and contains the log.
func TestUntil(t *testing.T) {
	host := lab.New(t, lab.Options{}).NodeA
	failed := errors.New("no such thing")
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"too slow", "echo starting; sleep 3", []string{"the event: not within 300ms: no such thing", "end of its log:\nstarting"}},
		{"ended", "echo no kernel >&2; exit 3", []string{"the event", "has ended", "exit status 3", "end of its log:\nno kernel"}},
		{"exited with 0", "exit 0", []string{"has ended", "exit status 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := Start(host.For(t), exec.Command("sh", "-c", test.script))
			if err != nil {
				t.Fatal(err)
			}
			err = p.Until(300*time.Millisecond, "the event", func() error { return failed })
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			var l Late
			if errors.As(err, &l) != (test.name == "too slow") {
				t.Errorf("%v: is a Late: %t", err, errors.As(err, &l))
			}
		})
	}
	if _, err := Start(host, exec.Command("/no/such/program")); err == nil {
		t.Error("no error for a program that does not exist")
	}
}

func TestStopping(t *testing.T) {
	p, err := Start(lab.New(t, lab.Options{}).NodeA, exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}
	if err := p.Until(0, "the event", func() error { return nil }); err != nil {
		t.Errorf("an attempt that succeeds at once fails: %v", err)
	}
}

// Peak counts a child with more memory than its parent, but not one that is still
// a copy of its parent.
func TestMemoryOfChildren(t *testing.T) {
	const (
		script = `x=$(head -c 30000000 /dev/zero | tr '\0' x); sleep 10`
		most   = 28 << 20
	)
	cmd := exec.Command("sh", "-c", `/bin/bash -c "$0" & wait`, script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := (&Process{PID: cmd.Process.Pid}).WatchMemory()
	var got Memory
	for deadline := time.Now().Add(9 * time.Second); got.Child < most && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m, err := w.Peak(); err == nil {
			got = m
		}
	}
	w.Stop()
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if got.Process == 0 || got.Process > 20<<20 || got.Child < most {
		t.Errorf("got %+v, want a small process with a child of 30 MB", got)
	}
}

func TestUsage(t *testing.T) {
	stat := "42 (a (strange) name) S 1 42 42 0 -1 4194304 0 0 0 0 150 50 20 5 20 0 8"
	if got, err := parseCPU(stat); err != nil || got != 2250*time.Millisecond {
		t.Errorf("got %v, %v, want 2.25s", got, err)
	}
	if _, err := parseCPU("42"); err == nil {
		t.Error("an invalid stat was accepted")
	}
	if peak, err := PeakMemory("self"); err != nil || peak < 1<<20 {
		t.Errorf("peak memory %d, %v", peak, err)
	}
	if _, err := PeakMemory(-1); err == nil {
		t.Error("no error for a process that does not exist")
	}
}

// The CPU time includes that of a running child.
func TestCPUOfChildren(t *testing.T) {
	cmd := exec.Command("sh", "-c", "(i=0; while [ $i -lt 5000000 ]; do i=$((i+1)); done) & exec sleep 20")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // killed
	})
	p := &Process{PID: cmd.Process.Pid}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if used, err := p.CPU(); err == nil && used > 50*time.Millisecond {
			return
		}
	}
	t.Error("the CPU time of the child is not counted")
}
