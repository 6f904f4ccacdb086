//go:build !linux

package handover

import "errors"

// errUnsupported is the error of every attempt.
var errUnsupported = errors.New("the program cannot re-execute itself on this system: restart it")

// Possible returns why this process cannot re-execute its program.
func Possible() error { return errUnsupported }

// Exec returns an error, as Possible does.
func (*Handover) Exec([]string) error { return errUnsupported }

// Receive returns nil: no process of this system re-executes itself.
func Receive() (*Handover, error) { return nil, nil }
