package adminpipe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// conn is a connection.
type conn struct{ *os.File }

func newConn(h windows.Handle) conn { return conn{os.NewFile(uintptr(h), pipeName)} }

// LocalAddr implements net.Conn.
func (conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (conn) RemoteAddr() net.Addr { return addr{} }

// addr is the address of both ends.
type addr struct{}

// Network implements net.Addr.
func (addr) Network() string { return "pipe" }

// String implements net.Addr.
func (addr) String() string { return pipeName }

// busyPause is the time between two attempts to connect to a process that is busy.
const busyPause = 10 * time.Millisecond

// anonymous keeps the server from acting as this user.
const anonymous = windows.SECURITY_SQOS_PRESENT | windows.SECURITY_ANONYMOUS

// Dial connects to the process that has the lock and returns its PID. The error is ErrFree if there is
// none. It waits while the process is busy.
func Dial(ctx context.Context) (net.Conn, int, error) {
	name, err := windows.UTF16PtrFromString(pipeName)
	if err != nil {
		return nil, 0, err
	}
	for {
		h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING,
			windows.FILE_FLAG_OVERLAPPED|anonymous, 0)
		switch {
		case err == nil:
			var pid uint32
			_ = windows.GetNamedPipeServerProcessId(h, &pid) // it is only shown
			return newConn(h), int(pid), nil
		case errors.Is(err, windows.ERROR_ACCESS_DENIED):
			return nil, 0, fmt.Errorf("%w: %w", ErrDenied, err)
		case errors.Is(err, windows.ERROR_FILE_NOT_FOUND), errors.Is(err, windows.ERROR_PATH_NOT_FOUND):
			if held := Held(); held != nil {
				return nil, 0, held
			}
		case !errors.Is(err, windows.ERROR_PIPE_BUSY):
			return nil, 0, fmt.Errorf("connect to %s: %w", pipeName, err)
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}
