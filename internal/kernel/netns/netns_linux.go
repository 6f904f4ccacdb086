// Package netns runs code in another network namespace than the own one.
package netns

import (
	"fmt"
	"runtime"

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

// Do runs fn in the network namespace of a file descriptor, on a thread of its
// own; 0: the current one. What fn makes, such as a socket, or reads below
// /proc/sys/net, is of that namespace.
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
