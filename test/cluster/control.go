//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// up starts a cluster in the background, and returns when it has started.
func up(o options) error {
	args := []string{"run", "-background", "-dir=" + o.dir}
	if o.bare {
		args = append(args, "-bare")
	}
	read, output, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), output.Close()); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) }) // an error means that it has ended
	for lines := bufio.NewScanner(read); lines.Scan(); {
		fmt.Println(lines.Text())
		if lines.Text() == lastLine && stop() {
			return nil
		}
	}
	if err := cmd.Wait(); err != nil {
		return errors.New("the cluster did not start")
	}
	return nil
}

// down ends the cluster of a folder, and returns when nothing is left.
func down(dir string) error {
	lock, err := os.OpenFile(lockIn(dir), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Println("cluster: none runs")
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		if waitForLock(lock, 0) == nil {
			break
		}
		pid, err := pidIn(lock)
		if err != nil {
			return err
		}
		_ = unix.Kill(pid, sig) // an error means that it has ended, and its guard is not ready
		if waitForLock(lock, 30*time.Second) == nil {
			break
		}
	}
	if err := waitForLock(lock, 0); err != nil {
		return fmt.Errorf("the cluster has not ended: %w", err)
	}
	return errors.Join(removeLeft(lock), os.RemoveAll(dir))
}

// waitForLock waits until the processes of a cluster have ended.
func waitForLock(lock *os.File, limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func pidIn(lock *os.File) (int, error) {
	text, err := os.ReadFile(lock.Name())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// removeLeft removes the cgroups of a cluster that was killed together with its guard.
func removeLeft(lock *os.File) error {
	pid, err := pidIn(lock)
	if err != nil {
		return nil // a new file, or the guard has removed it
	}
	dirs, err := cgroupsNamed(fmt.Sprintf("%s%d", cgroupName, pid))
	if err != nil {
		return err
	}
	return removeCgroups(dirs)
}

// controlPlane is the machine of the API server, which is no node.
const controlPlane = "control-plane"

// argsOf are the arguments of the first process of a machine of a cluster.
func argsOf(dir, name string) []string {
	if name == controlPlane {
		return []string{stageInside, dir}
	}
	return []string{stageNode, dir, name}
}

// execOn runs a command in the namespaces of a node, or of the control plane.
func execOn(dir string, args []string) error {
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1:1], args[2:]...)
	}
	if len(args) < 2 {
		return errors.New("want NODE -- COMMAND")
	}
	pid, err := findMachine(dir, args[0])
	if err != nil {
		return err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	// nsenter does not pass signals on, so its end is one for the command.
	return unix.Exec(nsenter,
		append([]string{"nsenter", "--all", "--target=" + pid, "--", "setpriv", "--pdeathsig=TERM", "--"}, args[1:]...),
		os.Environ())
}

// findMachine returns the PID of the first process of a node, or of the control plane.
func findMachine(dir, name string) (string, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	want := "\x00" + strings.Join(argsOf(dir, name), "\x00") + "\x00"
	for _, file := range lines {
		if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(text), want) {
			return filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", fmt.Errorf("no %s runs, want %s or one of the nodes %v", name, controlPlane, nodeNames())
}
