//go:build linux

package harness

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// Peak counts a child with more memory than its parent, but not one that is still a copy of its parent.
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
	deadline := time.Now().Add(9 * time.Second)
	for got.Child < most && time.Now().Before(deadline) {
		if m, err := w.Peak(); err == nil {
			got = m
		}
		time.Sleep(5 * time.Millisecond)
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

// The CPU time includes the time of a running child.
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
