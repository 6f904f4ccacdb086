package sysctl

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// within runs fn in a network namespace: /proc/sys/net shows that of the thread
// that looks.
func within(netns int, fn func() error) error {
	if netns == 0 {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
func isInvalid(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE)
}
