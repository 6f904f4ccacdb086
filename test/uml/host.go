//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/machine"
)

// hostArg is the first argument of the copy of this program that executes the kernel. PROCESSOR
// CLOCK KERNEL DIR BINARY ARGS follow.
const hostArg = "-boot"

// scratch is the only writable folder of the kernel process; both guest and host mount a tmpfs there.
const scratch = "/dev/shm"

// guestMemory is the memory size of the guest. The machine provides only the memory that is used.
const guestMemory = "2G"

const self = "/proc/self/exe"

// clock is how time passes in a guest.
type clock string

const (
	// idleClock advances only while nothing runs in the guest: timeouts of tests do not depend on the speed and load of
	// this machine, and pauses take no time. By this clock computing takes none either, so that a guest cannot measure
	// its speed: it would repeat for a minute a loop that should last some milliseconds.
	idleClock clock = "idle"

	// realClock is the clock of this machine, for measurements.
	realClock clock = "real"
)

// parameters returns the parameters of the kernel that select the clock, and variables of its first process.
func (c clock) parameters() []string {
	if c == idleClock {
		return []string{"time-travel=inf-cpu", machine.Variable + "=1"}
	}
	return nil
}

// guest is a kernel to boot on one processor of this machine, and the command to run in it, whose
// first word is the working folder.
type guest struct {
	processor int
	clock     clock
	kernel    string
	command   []string
}

// guestCommand returns the command that boots a guest. The program is this one, or a build without
// the race detector, which does not work in a guest. Its process is the first of a PID namespace,
// so that all its children end with it, and it is killed when this process ends.
func guestCommand(ctx context.Context, program string, g guest) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program,
		append([]string{hostArg, strconv.Itoa(g.processor), string(g.clock), g.kernel}, g.command...)...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{"HOME=" + scratch, "TMPDIR=" + scratch}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// boot executes the kernel. It returns only if it fails.
func boot(args []string) error {
	processor, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("read the number of the processor: %w", err)
	}
	how, kernel, command := clock(args[1]), args[2], args[3:]
	if err := bindTo(processor); err != nil {
		return err
	}
	if err := mountReadOnly(); err != nil {
		return err
	}
	program, err := os.Readlink(self)
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	line := append([]string{
		kernel, "mem=" + guestMemory, "quiet", "panic=-1",
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
		"con0=null,fd:1", "con=null", "ssl0=null,fd:3", "ssl=null",
		"init=" + program, guestVar + "=" + pack(command),
	}, how.parameters()...)
	return fmt.Errorf("run the kernel: %w", unix.Exec(kernel, line, os.Environ()))
}

// bindTo binds this goroutine's thread, and the program that it executes, to a processor. Each system call of a guest
// switches between two processes; across processors that takes up to half as long again.
func bindTo(processor int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(processor)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind the guest to processor %d: %w", processor, err)
	}
	return nil
}

// processors returns the processors that this process may use.
func processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("list processors: %w", err)
	}
	var all []int
	for n := range 8 * int(unsafe.Sizeof(set)) {
		if set.IsSet(n) {
			all = append(all, n)
		}
	}
	return all, nil
}

// mountReadOnly makes all file systems except scratch read-only for this process.
func mountReadOnly() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make file systems read-only: %w", err)
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "size="+guestMemory); err != nil {
		return fmt.Errorf("mount %s: %w", scratch, err)
	}
	return nil
}

// pack encodes arguments as one word without special characters: the kernel's command line
// separates words by spaces, and init gets no arguments with a dot.
func pack(args []string) string { return fmt.Sprintf("%x", strings.Join(args, "\x00")) }

// unpack decodes the result of pack.
func unpack(text string) ([]string, error) {
	var joined []byte
	if _, err := fmt.Sscanf(text, "%x", &joined); err != nil {
		return nil, fmt.Errorf("read %s: %w", guestVar, err)
	}
	args := strings.Split(string(joined), "\x00")
	if len(args) < 2 {
		return nil, errors.New("neither a folder nor a program to run")
	}
	return args, nil
}
