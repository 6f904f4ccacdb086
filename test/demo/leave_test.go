//go:build linux

package main

import (
	"os"
	"os/exec"
	"testing"
)

func TestColumns(t *testing.T) {
	const dev = "Inter-|   Receive\n face |bytes    packets\n    lo: 100 1\neth0:12345 7\n"
	if got, want := columns([]byte(dev), 1), "Inter-|\nface\nlo:\neth0:\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	const routes = "Iface Destination Gateway Flags RefCnt\neth0 00000000 010013AC 0003 7\n"
	if got, want := columns([]byte(routes), 3), "Iface Destination Gateway\neth0 00000000 010013AC\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMachineNetwork(t *testing.T) {
	one, err := machineNetwork(os.Getpid())
	if err != nil || one == "" {
		t.Fatalf("%q %v", one, err)
	}
	if two, err := machineNetwork(os.Getpid()); err != nil || one != two {
		t.Errorf("two readings differ: %q and %q: %v", one, two, err)
	}
	if _, err := machineNetwork(-1); err == nil {
		t.Error("no error for a process that does not exist")
	}
}

func TestLeftovers(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if users := usersOf([]string{own}); len(users) == 0 {
		t.Error("the namespace of this test has no users")
	}
	if users := usersOf([]string{"net:[0]"}); len(users) != 0 {
		t.Errorf("users of a namespace that does not exist: %v", users)
	}
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	if got := running([]int{sleep.Process.Pid}); len(got) != 1 {
		t.Errorf("running: %v", got)
	}
	if err := sleep.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Wait() // killed
	if got := running([]int{sleep.Process.Pid}); len(got) != 0 {
		t.Errorf("after its end: %v", got)
	}
}
