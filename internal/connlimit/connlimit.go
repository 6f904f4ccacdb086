// Package connlimit bounds the open connections of the servers of this process.
// Clients beyond a bound do not wait: the least important connection is closed for
// them, so that idle and slow clients cannot keep others from an answer, or file
// descriptors from the data plane.
package connlimit

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Options for New.
type Options struct {
	// Max is the most connections that are open at a time; 0: any number.
	Max int

	// Full is called when a connection was closed because of Max, at most once a
	// minute. It may be nil.
	Full func()
}

// quietPeriod is the least time between two calls of Options.Full.
const quietPeriod = time.Minute

// Limiter bounds the connections of one server, whose listeners may be several.
// It is safe for concurrent use.
type Limiter struct {
	opt   Options
	began time.Time

	mu       sync.Mutex
	open     map[*conn]struct{}
	reported time.Time // the last call of Full
}

// New returns a Limiter.
func New(o Options) *Limiter {
	return &Limiter{opt: o, began: time.Now(), open: map[*conn]struct{}{}}
}

// Listener returns a listener whose connections count.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limiter.Admit(c), nil
}

// Admit counts a connection until it is closed. If there are too many, it closes another
// one: of the client address with the most connections, the one that has been idle the
// longest. It closes connections from this host last, as kubelet probes from here.
func (l *Limiter) Admit(c net.Conn) net.Conn {
	k := &conn{Conn: c, limiter: l, client: clientOf(c)}
	k.touch()
	victim, report := l.add(k)
	if victim != nil {
		victim.abort()
	}
	if report {
		l.opt.Full()
	}
	return k
}

// Len returns the number of connections that are open.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// drainPause is the time between two checks for open connections.
const drainPause = 2 * time.Millisecond

// Drain waits until no connection is open, or the context ends. It is for a server
// that accepts no more: http.Server.Shutdown would close the connections whose
// request has not arrived yet.
func (l *Limiter) Drain(ctx context.Context) {
	tick := time.NewTicker(drainPause)
	defer tick.Stop()
	for l.Len() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// add adds a connection, and removes and returns the one to close for it, if any. It
// reports whether to call Options.Full.
func (l *Limiter) add(k *conn) (victim *conn, report bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opt.Max > 0 && len(l.open) >= l.opt.Max {
		victim = l.least(k.client)
		delete(l.open, victim)
		if now := time.Now(); l.opt.Full != nil && (l.reported.IsZero() || now.Sub(l.reported) >= quietPeriod) {
			l.reported, report = now, true
		}
	}
	l.open[k] = struct{}{}
	return victim, report
}

// least returns the least important connection when newcomer connects.
func (l *Limiter) least(newcomer client) *conn {
	of := map[client]int{newcomer: 1}
	for k := range l.open {
		of[k.client]++
	}
	var least *conn
	for k := range l.open {
		if least == nil || k.before(least, of) {
			least = k
		}
	}
	return least
}

func (l *Limiter) remove(k *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, k)
}

// client is the source of connections. A host with one IPv6 address can use all of
// its /64.
type client struct {
	from  netip.Prefix
	local bool // on this host
}

// prefixBits returns the number of leading address bits that identify a client.
func prefixBits(a netip.Addr) int {
	if a.Is4() {
		return 32
	}
	return 64
}

// clientOf returns the client of a TCP connection; all others are one client.
func clientOf(c net.Conn) client {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return client{}
	}
	from := remote.Addr().Unmap().WithZone("")
	own, _ := netip.ParseAddrPort(c.LocalAddr().String()) // not valid: no client has it
	if from.IsLoopback() || from == own.Addr().Unmap().WithZone("") {
		return client{netip.PrefixFrom(from, from.BitLen()), true}
	}
	prefix, _ := from.Prefix(prefixBits(from)) // the length fits
	return client{prefix, false}
}

// conn is a counted connection.
type conn struct {
	net.Conn
	limiter *Limiter
	client  client
	last    atomic.Int64 // when bytes were last read or written, since Limiter.began
}

// before reports whether k is less important than other.
func (k *conn) before(other *conn, of map[client]int) bool {
	switch {
	case k.client.local != other.client.local:
		return other.client.local
	case of[k.client] != of[other.client]:
		return of[k.client] > of[other.client]
	}
	return k.last.Load() < other.last.Load()
}

func (k *conn) touch() { k.last.Store(int64(time.Since(k.limiter.began))) }

// Read implements net.Conn.
func (k *conn) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

// Write implements net.Conn.
func (k *conn) Write(p []byte) (int, error) {
	n, err := k.Conn.Write(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

// Close implements net.Conn.
func (k *conn) Close() error {
	k.limiter.remove(k)
	return k.Conn.Close()
}

// abort closes the connection and drops data that the client has not read.
func (k *conn) abort() {
	if tcp, ok := k.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // it may be closed already
	}
	_ = k.Conn.Close() // ends the goroutine that serves it
}
