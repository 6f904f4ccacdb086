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
	_, fd, err := fcntl(of, unix.F_DUPFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// fcntl gives a command with the argument 0 to a file. It returns the descriptor of the file, and the result.
func fcntl(of syscall.Conn, command int) (fd uintptr, result int, err error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	controlErr := raw.Control(func(own uintptr) {
		fd = own
		result, err = unix.FcntlInt(own, command, 0)
	})
	return fd, result, errors.Join(controlErr, err)
}
