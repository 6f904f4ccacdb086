//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The processes of a cluster, by their first argument.
const (
	stageInside = "inside"
	stageNode   = "node"
	stageGuard  = "guard"
)

// namespaces are the namespaces of the control plane and of each node.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// orders is the file from which a process of the cluster reads its order, as JSON. The process ends with the one that
// gives orders.
const orders = 3

// child is a process of the cluster.
type child struct {
	cmd    *exec.Cmd
	orders *os.File
}

// newChild starts this program as another process of the cluster. More files follow the orders.
func newChild(flags uintptr, output io.Writer, args []string, more ...*os.File) (*child, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }() // the child has it
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = append([]*os.File{read}, more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", args[0], err), write.Close())
	}
	return &child{cmd: cmd, orders: write}, nil
}

func (c *child) order(what any) error { return json.NewEncoder(c.orders).Encode(what) }

// received are the orders to this process.
type received struct {
	decoder *json.Decoder
}

func receive() received {
	unix.CloseOnExec(orders)
	return received{json.NewDecoder(os.NewFile(orders, "orders"))}
}

// next reads the next order.
func (r received) next(into any) error {
	if err := r.decoder.Decode(into); err != nil {
		return fmt.Errorf("the process that gives orders has ended: %w", err)
	}
	return nil
}

// exitAtEnd ends this process, and with it its namespaces, when the process that gives orders has ended.
func (r received) exitAtEnd() {
	var none any
	_ = r.decoder.Decode(&none) // the error is the end
	os.Exit(0)
}

// reaper starts processes as the first process of a PID namespace, which also has to wait for orphans.
type reaper struct {
	mu    sync.Mutex
	ended map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{ended: map[int]chan syscall.WaitStatus{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for range signals {
			for r.reap() {
			}
		}
	}()
	return r
}

// reap waits for one process that has ended.
func (r *reaper) reap() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return errors.Is(err, syscall.EINTR)
	}
	if ended, known := r.ended[pid]; known {
		ended <- status
		delete(r.ended, pid)
	}
	return true
}

// start starts a process. The channel has its status when it has ended.
func (r *reaper) start(start func() (pid int, err error)) (<-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err != nil {
		return nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	r.ended[pid] = ended
	return ended, nil
}

// daemon starts a program that ends this process, and all others of its namespace, when it ends.
func (r *reaper) daemon(output io.Writer, argv ...string) error {
	ended, err := r.command(output, argv)
	if err != nil {
		return err
	}
	go func() {
		fmt.Fprintf(os.Stderr, "%s has ended (status %d): the cluster ends\n", argv[0], (<-ended).ExitStatus())
		os.Exit(1)
	}()
	return nil
}

// run runs a program to its end.
func (r *reaper) run(output io.Writer, argv ...string) error {
	ended, err := r.command(output, argv)
	if err != nil {
		return err
	}
	if status := <-ended; status != 0 {
		return fmt.Errorf("%v: exit status %d", argv, status.ExitStatus())
	}
	return nil
}

func (r *reaper) command(output io.Writer, argv []string) (<-chan syscall.WaitStatus, error) {
	return r.start(func() (int, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = output, output
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
}
