// Package netns runs code in another network namespace than the own one.
package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

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
