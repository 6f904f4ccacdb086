package namedpipe

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/windows"
)

// bufferBytes is the size of the buffers of a connection.
const bufferBytes = 64 << 10

// Listener holds the lock and is a net.Listener at the pipe, for one goroutine. Close may be called by
// another one.
type Listener struct {
	place   Place
	lock    windows.Handle
	closing windows.Handle // an event

	mu     sync.Mutex
	next   windows.Handle // the instance of the pipe that the next client gets; 0: none yet
	closed bool
}

// Listen takes the lock and makes the pipe. It does not wait: the error is ErrHeld if another process
// has the lock. Nobody is answered before Accept.
func (p Place) Listen() (*Listener, error) {
	held, err := p.acquire()
	if err != nil {
		return nil, err
	}
	first, err := p.instance(windows.FILE_FLAG_FIRST_PIPE_INSTANCE)
	if err != nil {
		return nil, errors.Join(err, windows.CloseHandle(held))
	}
	closing, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return nil, errors.Join(err, windows.CloseHandle(first), windows.CloseHandle(held))
	}
	return &Listener{place: p, lock: held, closing: closing, next: first}, nil
}

// instance makes an instance of the pipe, for one client.
func (p Place) instance(flags uint32) (windows.Handle, error) {
	sa, err := p.attributes()
	if err != nil {
		return 0, err
	}
	name, err := windows.UTF16PtrFromString(p.pipe)
	if err != nil {
		return 0, err
	}
	h, err := windows.CreateNamedPipe(name, windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_OVERLAPPED|flags,
		windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, windows.PIPE_UNLIMITED_INSTANCES,
		bufferBytes, bufferBytes, 0, sa)
	switch {
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return 0, fmt.Errorf("%w: make the pipe %s: %w", ErrDenied, p.pipe, err)
	case err != nil:
		return 0, fmt.Errorf("make the pipe %s: %w", p.pipe, err)
	}
	return h, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		h, err := l.take()
		if err != nil {
			return nil, err
		}
		err = l.connect(h)
		if err == nil {
			l.prepare()
			return l.place.conn(h), nil
		}
		_ = windows.CloseHandle(h) // nobody is connected
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
	}
}

// take returns an instance that no client has.
func (l *Listener) take() (windows.Handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, net.ErrClosed
	}
	h := l.next
	l.next = 0
	if h != 0 {
		return h, nil
	}
	return l.place.instance(0)
}

// prepare makes the next instance, so that clients wait for it in place of an error. If that is not
// possible, Accept tries again.
func (l *Listener) prepare() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, err := l.place.instance(0); err == nil && !l.closed {
		l.next = h
	} else if err == nil {
		_ = windows.CloseHandle(h)
	}
}

// connect waits for a client of an instance, or for Close.
func (l *Listener) connect(h windows.Handle) error {
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

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr(l.place.pipe) }

// Close implements net.Listener. It releases the lock; connections stay open.
func (l *Listener) Close() error {
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
	return errors.Join(err, windows.CloseHandle(l.lock))
}
