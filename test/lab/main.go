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

// parentVar is set in the process inside the namespaces, to the PID of the process that created
// them. The inner process must end with that one.
const parentVar = "SLUICE_LAB_PARENT"

// runner is the part of testing.M that Main uses.
type runner interface{ Run() int }

// Main runs the tests in new namespaces, with a raised priority, and exits. It is for TestMain.
func Main(m runner) {
	RaisePriority()
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Enter runs this program again, with the same arguments, in new network and mount namespaces,
// and in a user namespace if it lacks the privilege. It returns only in the new process: the old
// one waits for it and exits with its code. The new process is killed when the old one ends.
func Enter() error {
	parent := os.Getenv(parentVar)
	if parent == "" {
		code, err := runInNamespaces()
		if err != nil {
			return err
		}
		os.Exit(code)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent death signal: %w", err)
	}
	if parent != strconv.Itoa(os.Getppid()) {
		return fmt.Errorf("the process %s that created the namespaces has ended", parent)
	}
	if err := os.Unsetenv(parentVar); err != nil {
		return fmt.Errorf("unset %s: %w", parentVar, err)
	}
	return setUpNamespaces()
}

// runInNamespaces starts this program in new namespaces and waits for it.
func runInNamespaces() (int, error) {
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	defer runtime.UnlockOSThread()
	privileged, err := isPrivileged()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), parentVar+"="+strconv.Itoa(os.Getpid()))
	cmd.SysProcAttr = namespaceAttr()
	if !privileged {
		asRoot(cmd.SysProcAttr)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, namespaceError(err)
	}
	done := make(chan struct{})
	defer close(done)
	go forward(cmd.Process, signals, done)
	err = cmd.Wait()
	removeHome(cmd.Process.Pid)
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

// forward passes signals on, such as the one by which go test requests a goroutine dump.
func forward(p *os.Process, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			_ = p.Signal(s) // an error means that it has ended, which Wait reports
		case <-done:
			return
		}
	}
}

func namespaceAttr() *syscall.SysProcAttr {
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

// isPrivileged reports whether this process may create network namespaces.
func isPrivileged() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read own capabilities: %w", err)
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&needed == needed, nil
}

func namespaceError(err error) error {
	const remedy = "run as root, or allow unprivileged user namespaces " +
		"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, " +
		"kernel.apparmor_restrict_unprivileged_userns)"
	return fmt.Errorf("create namespaces: %w: %s", err, remedy)
}

// setUpNamespaces prepares the new namespaces: mounts of this process are private, /run is empty
// and writable (iptables has its lock there), and lo is up.
func setUpNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return namespaceError(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return namespaceError(err)
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

// writableSysctls makes /proc/sys writable where a container mounted it read-only.
func writableSysctls() error {
	if unix.Access("/proc/sys/net/ipv4/ip_forward", unix.W_OK) == nil {
		return nil
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("make /proc/sys writable: %w", err)
	}
	return nil
}
