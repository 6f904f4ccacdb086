//go:build !linux

package handover

import (
	"errors"
	"net"
	"os"
)

// errUnsupported is the error of every attempt.
var errUnsupported = errors.New("the program cannot execute itself anew on this system: restart it")

// Possible returns why this process cannot re-execute its program.
func Possible() error { return errUnsupported }

// Exec returns an error: Possible said so.
func (*Handover) Exec([]string) error { return errUnsupported }

// Receive returns nil: no process of this system re-executes itself.
func Receive() (*Handover, error) { return nil, nil }

// ErrFormat is no error of this system.
var ErrFormat = errors.New("another version of the program handed over")

// Send returns an error: Possible said so.
func (*Handover) Send() error { return errUnsupported }

// Accept returns an error: Possible says so.
func Accept(*net.UnixConn) (*Handover, error) { return nil, errUnsupported }

func (*Handover) check() error { return nil }

func reset(fd int) { _ = os.NewFile(uintptr(fd), "inherited").Close() }
