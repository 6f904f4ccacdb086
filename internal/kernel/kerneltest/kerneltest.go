// Package kerneltest lets tests use a real kernel without touching the machine:
// in network namespaces of their own, also without root.
package kerneltest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside marks the copy of the test program that runs in a user namespace.
const inside = "SLUICE_TEST_USER_NAMESPACE"

// Main runs the tests, as root of a user namespace when they were not started
// by root. Call it from TestMain and exit with what it returns. Where that is
// not allowed it is an error, save with -short, which promises to need no root:
// then the tests that ask for a Namespace are skipped.
func Main(m *testing.M) int {
	if !flag.Parsed() {
		flag.Parse()
	}
	if os.Geteuid() == 0 || os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil && testing.Short() {
		return m.Run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "tests need root, or a kernel that lets users make namespaces: %v\n", err)
		return 1
	}
	return 0
}

// Namespace makes a network namespace with its loopback interface up, and
// returns a file descriptor of it. It lives as long as the test.
func Namespace(t testing.TB) int {
	t.Helper()
	fd, err := namespace()
	if errors.Is(err, fs.ErrPermission) && testing.Short() {
		t.Skip("neither root nor a kernel that lets users make namespaces")
	}
	if err != nil {
		t.Fatalf("make network namespace (tests need root or unprivileged user namespaces): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Errorf("close namespace: %v", err)
		}
	})
	return fd
}

// Do runs fn on a thread that is in the namespace.
func Do(t testing.TB, netns int, fn func() error) {
	t.Helper()
	err := onOwnThread(func() error {
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace: %w", err)
		}
		return fn()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func namespace() (fd int, err error) {
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open namespace: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		return netlink.LinkSetUp(lo)
	})
	return fd, err
}

// onOwnThread runs fn on a thread that is thrown away afterwards, with whatever
// fn did to it.
func onOwnThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}
