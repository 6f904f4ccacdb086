//go:build unix

// Package userlock is a lock in a folder of a user, for daemons without privileges. For a network namespace there is
// package netlock.
//
// The lock is a file that the system locks (flock), so that it is free as soon as its holder has ended, even by kill
// -9. The file has the PID of its holder.
package userlock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/handover"
)

// Errors of this package.
var (
	// ErrHeld means that another process holds the lock.
	ErrHeld = errors.New("lock is held")
	// ErrFree means that no process holds the lock.
	ErrFree = errors.New("lock is free")
)

// name is the name of the file in its folder.
const name = "lock"

// Lock is held until Close, or until the process ends.
type Lock struct{ file *os.File }

// Acquire takes the lock of a folder, which exists. It does not wait: the error is ErrHeld if another
// process holds it, or is checking it at this moment.
func Acquire(folder string) (*Lock, error) {
	file, err := os.OpenFile(filepath.Join(folder, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = lock(file, unix.LOCK_EX)
	if err == nil {
		err = writePID(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return &Lock{file}, nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err
}

// Adopt returns a lock that is held by a file of File. It owns the file.
func Adopt(file *os.File) *Lock { return &Lock{file} }

// File returns a second file that holds the lock, which is released when both are closed (flock(2)).
func (l *Lock) File() (*os.File, error) { return handover.Duplicate(l.file) }

// Close releases the lock.
func (l *Lock) Close() error { return l.file.Close() }

// Holder returns the PID of the holder of the lock of a folder; 0 if the holder has not written it yet. The error is
// ErrFree if the lock is free.
func Holder(folder string) (pid int, err error) {
	file, err := os.Open(filepath.Join(folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrFree
	}
	if err != nil {
		return 0, fmt.Errorf("open the lock: %w", err)
	}
	defer func() { _ = file.Close() }() // releases it
	err = lock(file, unix.LOCK_SH)
	switch {
	case err == nil:
		return 0, ErrFree
	case !errors.Is(err, ErrHeld):
		return 0, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return 0, fmt.Errorf("find the holder of the lock: %w", err)
	}
	pid, _ = strconv.Atoi(string(text)) // 0 while it is being written
	return pid, nil
}

// lock locks a file, for one process or for all that share it. The error is ErrHeld if another process
// keeps it from that.
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
