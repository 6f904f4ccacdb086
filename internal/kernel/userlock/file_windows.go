package userlock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// connectionReset is the error of a connection that the peer has reset: never syscall.ECONNRESET here.
const connectionReset = windows.WSAECONNRESET

// lockAlone locks a file for one process. The error is ErrHeld if any other has it locked.
func lockAlone(f *os.File) error { return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// lockShared locks a file for all that call it. The error is ErrHeld if one has it alone.
func lockShared(f *os.File) error { return lock(f, 0) }

func lock(f *os.File, how uint32) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = windows.LockFileEx(windows.Handle(fd), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return errors.Join(controlErr, err)
}

// duplicate returns an error: no other process inherits the lock.
func duplicate(*os.File) (*os.File, error) {
	return nil, errors.New("hand over the lock: not possible on this system")
}
