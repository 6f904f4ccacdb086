//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideVar tells a process that it runs in namespaces of its own. Its value is
// the process that made them, without which it has no business to live.
const insideVar = "SLUICE_LAB_PARENT"

// runner is testing.M, as far as needed.
type runner interface{ Run() int }

// Main runs the tests in fresh namespaces and exits. It is for TestMain.
func Main(m runner) {
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Enter runs this program again, with the same arguments, in fresh network and
// mount namespaces, and a user namespace where it lacks the privilege. It
// returns in the new process only: the old one waits for it and exits with its
// code. The new process dies with the old one.
func Enter() error {
	parent := os.Getenv(insideVar)
	if parent == "" {
		code, err := again()
		if err != nil {
			return err
		}
		os.Exit(code)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tie this process to its parent: %w", err)
	}
	if parent != strconv.Itoa(os.Getppid()) {
		return fmt.Errorf("the process %s that made the namespaces is gone", parent)
	}
	if err := os.Unsetenv(insideVar); err != nil {
		return fmt.Errorf("unset %s: %w", insideVar, err)
	}
	return settle()
}

// again starts this program in fresh namespaces and waits for it.
func again() (int, error) {
	runtime.LockOSThread() // the child dies with the thread that started it
	defer runtime.UnlockOSThread()
	privileged, err := administers()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVar+"="+strconv.Itoa(os.Getpid()))
	cmd.SysProcAttr = fresh()
	if !privileged {
		asRoot(cmd.SysProcAttr)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, refusal(err)
	}
	done := make(chan struct{})
	defer close(done)
	go forward(cmd.Process, signals, done)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for the process in the namespaces: %w", err)
	}
	return exitCode(cmd.ProcessState), nil
}

func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// forward passes signals on: go test asks for a dump of all goroutines by one.
func forward(p *os.Process, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			_ = p.Signal(s) // gone already: Wait tells
		case <-done:
			return
		}
	}
}

func fresh() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  unix.SIGKILL,
	}
	return a
}

// asRoot puts the process into a user namespace in which it is root.
func asRoot(a *syscall.SysProcAttr) {
	a.Cloneflags |= unix.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
}

// administers reports whether this process may make network namespaces.
func administers() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read own capabilities: %w", err)
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&needed == needed, nil
}

func refusal(err error) error {
	const remedy = "run as root, or allow unprivileged user namespaces " +
		"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, " +
		"kernel.apparmor_restrict_unprivileged_userns)"
	return fmt.Errorf("make namespaces: %w: %s", err, remedy)
}

// settle makes the new namespaces usable: mounts of this process stay its own,
// /run is empty and writable (iptables keeps its lock there), lo is up.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return refusal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return refusal(err)
	}
	if err := writableSysctls(); err != nil {
		return err
	}
	n, err := currentNamespace()
	if err != nil {
		return err
	}
	defer n.close()
	return n.prepare()
}

// writableSysctls makes /proc/sys writable where a container mounted it
// read-only.
func writableSysctls() error {
	if unix.Access("/proc/sys/net/ipv4/ip_forward", unix.W_OK) == nil {
		return nil
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("make /proc/sys writable: %w", err)
	}
	return nil
}
