//go:build unix

package handover

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Duplicate returns a second file for the same open file description, with its locks (flock(2)). The caller closes it.
func Duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	controlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("hand over %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
