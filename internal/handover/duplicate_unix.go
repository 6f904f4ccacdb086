//go:build unix

package handover

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Duplicate returns a file for the same open file description, with its locks (flock(2)). The caller closes it.
func Duplicate(of syscall.Conn, name string) (*os.File, error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	controlErr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
