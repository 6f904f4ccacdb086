package nft

import (
	"errors"
	"io/fs"
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

// refusal returns a RefusedError of a rejected transaction, or the error itself if the
// kernel misses something (ENOENT) that another program must have deleted. That is a table
// that the transaction needs, or any object if the transaction names no chain. A chain may
// be refused itself, or have a rule with a type of expression that the kernel lacks, which
// is ENOENT too (nf_tables_api.c, nft_expr_type_get).
func refusal(err error, tx *Tx, exists func(Table) bool) error {
	gone := func(t Table) bool { return !exists(t) }
	if errors.Is(err, fs.ErrNotExist) && (!tx.namesChains() || slices.ContainsFunc(tx.needed(), gone)) {
		return err
	}
	return &RefusedError{err}
}

// rejected reports whether an error is the kernel's answer to a transaction, and not one
// about the connection, missing privilege or lack of memory.
func rejected(err error) bool {
	answer, is := errors.AsType[*netlink.OpError](err)
	if !is || answer.Op != "receive" {
		return false
	}
	if _, local := errors.AsType[*os.SyscallError](answer); local {
		return false
	}
	errno, is := errors.AsType[syscall.Errno](answer)
	passing := []syscall.Errno{unix.EPERM, unix.EACCES, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR}
	return is && !slices.Contains(passing, errno)
}
