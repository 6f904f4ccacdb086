// Package netns opens netlink sockets and runs code in another network namespace.
package netns

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Handle opens a netlink socket of a family (unix.NETLINK_ROUTE ...) in the network
// namespace of a file descriptor; 0: the current one. The caller closes it.
func Handle(fd, family int) (*netlink.Handle, error) {
	if fd == 0 {
		return netlink.NewHandleAt(netns.None(), family)
	}
	return netlink.NewHandleAt(netns.NsHandle(fd), family)
}

// List calls list, and repeats the call with growing pauses while the kernel reports that
// the listed objects changed during it. It stops when the context ends.
func List[T any](ctx context.Context, list func() ([]T, error)) ([]T, error) {
	const minPause, maxPause = time.Millisecond, 100 * time.Millisecond
	for pause := minPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil, context.Cause(ctx)
}

// Inode returns the number of a network namespace, which no other one of this kernel has while it exists.
func Inode(fd int) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	if fd == 0 {
		err = unix.Stat("/proc/thread-self/ns/net", &stat)
	}
	if err != nil {
		return 0, fmt.Errorf("identify network namespace: %w", err)
	}
	return stat.Ino, nil
}

// Name returns the name of a network namespace as the links in /proc/PID/ns show it: "net:[4026531840]".
func Name(fd int) (string, error) {
	inode, err := Inode(fd)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("net:[%d]", inode), nil
}

// Do runs fn in the network namespace of a file descriptor, on a thread of its own; 0: the current one. Sockets that
// fn opens, and parameters that it reads below /proc/sys/net, belong to that namespace.
func Do(fd int, fn func() error) error {
	if fd == 0 {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}
