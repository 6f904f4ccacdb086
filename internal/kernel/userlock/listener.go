package userlock

import (
	"errors"
	"net"
	"sync"
	"time"
)

const (
	secretTimeout = 2 * time.Second // for both sides of a connection to prove that they have the secret
	acceptPause   = 100 * time.Millisecond
	maxUnproven   = 64 // connections that have not proven it; of more, others are closed
)

// Listener is a net.Listener of connections whose peers have the secret.
type Listener struct {
	inner  net.Listener
	secret string
	conns  chan net.Conn
	closed chan struct{}
	close  func() error
}

func newListener(inner net.Listener, secret string) *Listener {
	l := &Listener{inner: inner, secret: secret, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		return inner.Close()
	})
	return l
}

// Run accepts connections for Accept until Close.
// A silent connection does not delay others.
func (l *Listener) Run() {
	defer func() { _ = l.close() }()
	var checks sync.WaitGroup
	defer checks.Wait()
	unproven := newWaiting()
	for {
		c, err := l.inner.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			time.Sleep(acceptPause)
			continue
		}
		unproven.add(c)
		checks.Go(func() {
			ok := l.proves(c)
			unproven.remove(c)
			if !ok || !l.pass(c) {
				_ = c.Close()
			}
		})
	}
}

// waiting are connections that have not proven anything yet.
type waiting struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newWaiting() *waiting { return &waiting{conns: map[net.Conn]struct{}{}} }

// add adds a connection. If there are too many, it closes one of the others at random, so that silent ones
// keep no slot from one that has the secret.
func (w *waiting) add(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.conns) >= maxUnproven {
		for other := range w.conns {
			_ = other.Close()
			delete(w.conns, other)
			break
		}
	}
	w.conns[c] = struct{}{}
}

func (w *waiting) remove(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// proves reports whether the peer of a connection has the secret.
func (l *Listener) proves(c net.Conn) bool {
	if c.SetDeadline(time.Now().Add(secretTimeout)) != nil {
		return false
	}
	return proveHolder(c, l.secret) == nil && c.SetDeadline(time.Time{}) == nil
}

// pass passes a connection to Accept; false: the listener is closed.
func (l *Listener) pass(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { return l.close() }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }
