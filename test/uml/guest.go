//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/machine"
)

// guestVar is the environment variable of the guest's first process with the command to run.
const guestVar = "SLUICE_UML"

// runGuest is the first process of a guest: it runs the tests, reports their exit code, and powers
// off. It does not return.
func runGuest() {
	if err := runTests(); err != nil {
		fmt.Println("uml:", err) // on the console
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func runTests() error {
	args, err := unpack(os.Getenv(guestVar))
	if err != nil {
		return err
	}
	if err := mounts(); err != nil {
		return err
	}
	if err := seedRandom(); err != nil {
		return err
	}
	port, err := serial()
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + scratch, "TMPDIR=" + scratch,
	}
	if slowdown, set := os.LookupEnv(machine.Variable); set {
		env = append(env, machine.Variable+"="+slowdown)
	}
	pid, err := syscall.ForkExec(args[1], args[1:], &syscall.ProcAttr{
		Dir: args[0], Env: env,
		Files: []uintptr{null.Fd(), port.Fd(), port.Fd()},
	})
	if err != nil {
		return fmt.Errorf("run %s: %w", args[1], err)
	}
	status, err := reap(pid)
	if err != nil {
		return err
	}
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	fmt.Fprintf(port, "\n%s%d\n", exitMark, code)
	return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) // wait until all output is written
}

// mounts mounts the file systems that programs expect. The root stays read-only.
func mounts() error {
	for _, m := range [][2]string{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"tmpfs", "/run"},
		{"cgroup2", "/sys/fs/cgroup"},
		{"devpts", "/dev/pts"},
		{"tmpfs", scratch},
	} {
		if m[1] == "/dev/pts" || m[1] == scratch {
			if err := os.Mkdir(m[1], 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	return nil
}

// seedRandom makes random numbers available. A guest has no source of them, and with the clock of the machine the
// kernel does not make one up: programs would wait forever. The numbers are no secret.
func seedRandom() error {
	random, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = random.Close() }()
	pool := struct { // struct rand_pool_info
		bits, size int32
		data       [32]byte
	}{bits: 256, size: 32}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, random.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool)))
	if errno != 0 {
		return fmt.Errorf("seed the random numbers: %w", errno)
	}
	return nil
}

// serial opens the serial line to the host in raw mode.
func serial() (*os.File, error) {
	port, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	mode, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the mode of the serial line: %w", err)
	}
	mode.Oflag &^= unix.OPOST
	mode.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, mode); err != nil {
		return nil, fmt.Errorf("set the mode of the serial line: %w", err)
	}
	return port, nil
}

// reap waits for a process, and reaps orphans meanwhile.
func reap(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		done, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return status, fmt.Errorf("wait for the tests: %w", err)
		}
		if done == pid {
			return status, nil
		}
	}
}
