//go:build !linux

// Package netns runs code in another network namespace. Only Linux has them.
package netns

import "errors"

// ErrUnsupported is the error for every network namespace except the current one.
var ErrUnsupported = errors.New("this system has no network namespaces")

// Name returns ErrUnsupported.
func Name(int) (string, error) { return "", ErrUnsupported }

// Do runs fn. The error is ErrUnsupported if the file descriptor is not 0.
func Do(fd int, fn func() error) error {
	if fd != 0 {
		return ErrUnsupported
	}
	return fn()
}
