//go:build linux

package wine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// space is a PID namespace. Its first process ends when this process does, even by kill -9, and all others end with
// the first.
type space struct {
	starts chan request
	ended  chan struct{}
}

// request is a command to start, and where the outcome goes.
type request struct {
	cmd   *exec.Cmd
	reply chan error
}

func newSpace() (*space, error) {
	s := &space{starts: make(chan request), ended: make(chan struct{})}
	ready := make(chan error)
	go s.run(ready)
	return s, <-ready
}

// run starts the processes of the namespace on one thread: the first process is killed when the
// thread ends, and only children of the thread are in the namespace.
func (s *space) run(ready chan<- error) {
	runtime.LockOSThread() // never unlocked
	first := exec.Command("sleep", "infinity")
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	if err := first.Start(); err != nil {
		ready <- fmt.Errorf("create a PID namespace: %w", err)
		return
	}
	if err := enter(first.Process.Pid); err != nil {
		ready <- errors.Join(err, first.Process.Kill(), first.Wait())
		return
	}
	ready <- nil
	for r := range s.starts {
		r.reply <- r.cmd.Start()
	}
	_ = first.Process.Kill()
	_ = first.Wait() // it was killed; the kernel waits for all others
	close(s.ended)
}

// enter makes children of this thread begin in the PID namespace of a process.
func enter(pid int) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	if err != nil {
		return fmt.Errorf("enter the PID namespace: %w", err)
	}
	defer func() { _ = ns.Close() }() // it was only read
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter the PID namespace: %w", err)
	}
	return nil
}

// start starts a command in the namespace.
func (s *space) start(cmd *exec.Cmd) error {
	r := request{cmd, make(chan error)}
	s.starts <- r
	return <-r.reply
}

// close ends all processes of the namespace.
func (s *space) close() {
	close(s.starts)
	<-s.ended
}
