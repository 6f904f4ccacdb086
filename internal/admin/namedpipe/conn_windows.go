package namedpipe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

type conn struct{ *os.File }

func (p Place) conn(h windows.Handle) conn { return conn{os.NewFile(uintptr(h), p.pipe)} }

// LocalAddr implements net.Conn.
func (c conn) LocalAddr() net.Addr { return addr(c.Name()) }

// RemoteAddr implements net.Conn.
func (c conn) RemoteAddr() net.Addr { return addr(c.Name()) }

// addr is the address of both ends: the name of the pipe.
type addr string

// Network implements net.Addr.
func (addr) Network() string { return "pipe" }

// String implements net.Addr.
func (a addr) String() string { return string(a) }

// busyPause is the time between two attempts to connect to a process that is busy.
const busyPause = 10 * time.Millisecond

// anonymous keeps the server from acting as this user.
const anonymous = windows.SECURITY_SQOS_PRESENT | windows.SECURITY_ANONYMOUS

// Dial connects to the process that has the lock. The error is ErrFree if there is none. It waits while the process is
// busy.
func (p Place) Dial(ctx context.Context) (net.Conn, error) {
	for {
		h, err := p.open()
		switch {
		case err == nil:
			return p.conn(h), nil
		case errors.Is(err, windows.ERROR_FILE_NOT_FOUND), errors.Is(err, windows.ERROR_PATH_NOT_FOUND):
			if held := p.held(); held != nil {
				return nil, held
			}
		case !errors.Is(err, windows.ERROR_PIPE_BUSY):
			return nil, fmt.Errorf("connect to %s: %w", p.pipe, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

// open opens the pipe, and verifies that a permitted user made it.
func (p Place) open() (windows.Handle, error) {
	name, err := windows.UTF16PtrFromString(p.pipe)
	if err != nil {
		return 0, err
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_OVERLAPPED|anonymous, 0)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return 0, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if err != nil {
		return 0, err
	}
	if err := p.checkOwner(h); err != nil {
		return 0, errors.Join(err, windows.CloseHandle(h))
	}
	return h, nil
}

// checkOwner returns an ErrDenied if another user made the pipe: any user can create a pipe of this name first.
func (p Place) checkOwner(h windows.Handle) error {
	if p.owner == nil {
		return nil
	}
	descriptor, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w", p.pipe, err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w", p.pipe, err)
	}
	if !owner.Equals(p.owner) {
		return fmt.Errorf("%w: user %s has made %s", ErrDenied, owner, p.pipe)
	}
	return nil
}
