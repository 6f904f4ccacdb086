// Package netns opens netlink and runs code in another network namespace.
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

// Handle opens netlink of a family (unix.NETLINK_ROUTE ...) in the network
// namespace of a file descriptor; 0: the current one. The caller closes it.
func Handle(fd, family int) (*netlink.Handle, error) {
	if fd == 0 {
		return netlink.NewHandleAt(netns.None(), family)
	}
	return netlink.NewHandleAt(netns.NsHandle(fd), family)
}

// List calls list until what it lists does not change during the call, with growing
// pauses. It ends early when the context ends.
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

// Name returns the name of a network namespace as the links in /proc/PID/ns show it:
// "net:[4026531840]".
func Name(fd int) (string, error) {
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	if fd == 0 {
		err = unix.Stat("/proc/thread-self/ns/net", &stat)
	}
	if err != nil {
		return "", fmt.Errorf("identify network namespace: %w", err)
	}
	return fmt.Sprintf("net:[%d]", stat.Ino), nil
}

// Do runs fn in the network namespace of a file descriptor, on a thread of its own; 0: the
// current one. Sockets that fn opens, and parameters that it reads below /proc/sys/net,
// belong to that namespace.
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
