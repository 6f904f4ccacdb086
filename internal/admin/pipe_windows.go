package admin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/windows"
)

// pipeListener is a net.Listener at a pipe, for one goroutine. Close may be called by another one.
type pipeListener struct {
	scope   scope
	mutex   windows.Handle // the lock
	closing windows.Handle // an event

	mu     sync.Mutex
	next   windows.Handle // the instance that the next client gets; 0: Accept has it, or the listener is closed
	closed bool
}

// newListener makes the pipe for the holder of the mutex. From then on there is always an instance, so that no other
// process makes the pipe.
func (s scope) newListener(mutex windows.Handle) (*pipeListener, error) {
	first, err := s.instance(windows.FILE_FLAG_FIRST_PIPE_INSTANCE)
	if err != nil {
		return nil, err
	}
	closing, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return nil, errors.Join(err, windows.CloseHandle(first))
	}
	return &pipeListener{scope: s, mutex: mutex, closing: closing, next: first}, nil
}

// instance makes an instance of the pipe, for one client.
func (s scope) instance(flags uint32) (windows.Handle, error) {
	sa, err := s.attributes()
	if err != nil {
		return 0, err
	}
	const bufferBytes = 64 << 10
	h, err := windows.CreateNamedPipe(utf16(s.pipe), windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_OVERLAPPED|flags,
		windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, windows.PIPE_UNLIMITED_INSTANCES,
		bufferBytes, bufferBytes, 0, sa)
	if err != nil {
		return 0, fmt.Errorf("make the pipe %s: %w", s.pipe, err)
	}
	return h, nil
}

func (l *pipeListener) Accept() (net.Conn, error) {
	for {
		h, err := l.take()
		if err != nil {
			return nil, err
		}
		err = l.connect(h)
		if errors.Is(err, net.ErrClosed) {
			return nil, errors.Join(err, windows.CloseHandle(h))
		}
		if err == nil {
			var next windows.Handle
			if next, err = l.scope.instance(0); err == nil {
				l.put(next)
				return l.scope.conn(h), nil
			}
		}
		_ = windows.DisconnectNamedPipe(h) // the client sees an error
		l.put(h)
	}
}

// take returns the instance for the next client.
func (l *pipeListener) take() (windows.Handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, net.ErrClosed
	}
	h := l.next
	l.next = 0
	return h, nil
}

// put keeps an instance for the next client.
func (l *pipeListener) put(h windows.Handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = windows.CloseHandle(h) // nobody is connected
		return
	}
	l.next = h
}

// connect waits for a client of an instance, or for Close.
func (l *pipeListener) connect(h windows.Handle) error {
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return err
	}
	defer func() { _ = windows.CloseHandle(event) }()
	o := &windows.Overlapped{HEvent: event}
	err = windows.ConnectNamedPipe(h, o)
	switch {
	case err == nil, errors.Is(err, windows.ERROR_PIPE_CONNECTED):
		return nil
	case !errors.Is(err, windows.ERROR_IO_PENDING):
		return err
	}
	signalled, err := windows.WaitForMultipleObjects([]windows.Handle{event, l.closing}, false, windows.INFINITE)
	if err == nil && signalled != windows.WAIT_OBJECT_0 {
		err = net.ErrClosed
	}
	if err != nil {
		_ = windows.CancelIoEx(h, o) // it may just have ended
	}
	var n uint32
	return errors.Join(err, windows.GetOverlappedResult(h, o, &n, true))
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.scope.pipe) }

// Close releases the lock; connections stay open.
func (l *pipeListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	err := windows.SetEvent(l.closing)
	if l.next != 0 {
		err = errors.Join(err, windows.CloseHandle(l.next))
	}
	return errors.Join(err, windows.CloseHandle(l.mutex))
}

// open connects to the pipe, and verifies that a permitted user made it. The error is ERROR_PIPE_BUSY if there is no
// instance for this client at the moment.
func (s scope) open() (windows.Handle, error) {
	const anonymous = windows.SECURITY_SQOS_PRESENT | windows.SECURITY_ANONYMOUS // the server cannot act as this user
	h, err := windows.CreateFile(utf16(s.pipe), windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_OVERLAPPED|anonymous, 0)
	switch {
	case errors.Is(err, windows.ERROR_FILE_NOT_FOUND), errors.Is(err, windows.ERROR_PATH_NOT_FOUND):
		return 0, s.free
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return 0, s.closed
	case err != nil:
		return 0, fmt.Errorf("connect to %s: %w", s.pipe, err)
	}
	if err := s.checkOwner(h); err != nil {
		return 0, errors.Join(err, windows.CloseHandle(h))
	}
	return h, nil
}

// checkOwner returns an error if another user made the pipe: any user can make a pipe of this name first.
func (s scope) checkOwner(h windows.Handle) error {
	if s.owner == nil {
		return nil
	}
	descriptor, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w", s.pipe, err)
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w", s.pipe, err)
	}
	if !owner.Equals(s.owner) {
		return fmt.Errorf("%w: user %s has made %s", s.closed, owner, s.pipe)
	}
	return nil
}

// pipeConn is one end of a connection, a net.Conn.
type pipeConn struct{ *os.File }

func (s scope) conn(h windows.Handle) net.Conn { return pipeConn{os.NewFile(uintptr(h), s.pipe)} }

func (c pipeConn) LocalAddr() net.Addr { return pipeAddr(c.Name()) }

func (c pipeConn) RemoteAddr() net.Addr { return pipeAddr(c.Name()) }

// pipeAddr is the net.Addr of both ends: the name of the pipe.
type pipeAddr string

func (pipeAddr) Network() string { return "pipe" }

func (a pipeAddr) String() string { return string(a) }
