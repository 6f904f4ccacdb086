//go:build unix

package userlock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// connectionReset is the error of a connection that the peer has reset.
const connectionReset = unix.ECONNRESET

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

// duplicate returns a second descriptor of a file, which shares its lock (flock(2)).
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	controlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlErr, err); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
