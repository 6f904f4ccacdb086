package nft

import (
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// RefusedError is the error of a transaction that the kernel rejects because of its
// contents. None of it is carried out.
type RefusedError struct{ Err error }

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// refused reports whether an error is the kernel's answer to the contents of a transaction. It
// is not if it is about the connection, missing privilege, lack of memory, or an object that is
// missing (ENOENT), as another program has deleted it.
func refused(err error) bool {
	answer, is := errors.AsType[*netlink.OpError](err)
	if !is || answer.Op != "receive" {
		return false
	}
	if _, local := errors.AsType[*os.SyscallError](answer); local {
		return false
	}
	errno, is := errors.AsType[syscall.Errno](answer)
	passing := []syscall.Errno{unix.EPERM, unix.EACCES, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.ENOENT}
	return is && !slices.Contains(passing, errno)
}
