package nft

import (
	"slices"

	"golang.org/x/sys/unix"
)

// RefusedError is the error of a transaction that the kernel rejects because of its
// contents. None of it is carried out.
type RefusedError struct{ Err error }

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// refusal returns the error for the kernel's answer to a transaction. It is a RefusedError unless the answer is about
// missing privilege, lack of memory, or an object that is missing (ENOENT), as another program has deleted it.
func refusal(answer error) error {
	passing := []error{unix.EPERM, unix.EACCES, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.ENOENT}
	if slices.Contains(passing, answer) {
		return answer
	}
	return &RefusedError{answer}
}
