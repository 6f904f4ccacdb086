// Package kerneltest lets tests use the real kernel without changes to the host:
// in new network namespaces, also without root.
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

// isNew is the value of inside until the namespaces have loopback and a folder /run.
const isNew = "new"

// Main runs the tests. If they were not started by root, it runs them as root of a new user namespace. Call it from
// TestMain and exit with its result. If the kernel does not allow that, Main fails, except with -short, which promises
// to need no root: then tests that use Namespace are skipped.
func Main(m *testing.M) int {
	if !flag.Parsed() {
		flag.Parse()
	}
	if os.Getenv(inside) == isNew {
		// The lock of iptables is in /run.
		err := errors.Join(unix.Mount("tmpfs", "/run", "tmpfs", 0, ""), loopbackUp(), os.Setenv(inside, "ready"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Geteuid() == 0 || os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"="+isNew)
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
		fmt.Fprintf(os.Stderr, "tests need root, or a kernel that lets users create namespaces: %v\n", err)
		return 1
	}
	return 0
}

// Namespace creates a network namespace with its loopback interface up, and returns a file
// descriptor of it, which is closed when the test ends.
func Namespace(t testing.TB) int {
	t.Helper()
	fd, err := namespace()
	if errors.Is(err, fs.ErrPermission) && testing.Short() {
		t.Skip("needs root, or a kernel that lets users create namespaces")
	}
	if err != nil {
		t.Fatalf("create network namespace (tests need root or unprivileged user namespaces): %v", err)
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
		return loopbackUp()
	})
	return fd, err
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// onOwnThread runs fn on a new thread, which ends afterwards, so that changes of the thread do not persist.
func onOwnThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}
