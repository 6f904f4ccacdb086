//go:build unix

package userlock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockAlone locks a file for one process. The error is ErrHeld if any other has it locked.
func lockAlone(f *os.File) error { return lock(f, unix.LOCK_EX) }

// lockShared locks a file for all that call it. The error is ErrHeld if one has it alone.
func lockShared(f *os.File) error { return lock(f, unix.LOCK_SH) }

func lock(f *os.File, how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.Flock(int(fd), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrHeld
	}
	return errors.Join(controlErr, err)
}
