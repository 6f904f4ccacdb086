package fair

import (
	"context"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"
)

// LimiterOptions for NewLimiter.
type LimiterOptions struct {
	// Max is the most connections that are open at a time; 0: any number.
	Max int

	// Full is called when a connection was closed because of Max, at most once a minute. It may be nil.
	Full func()
}

// quietPeriod is the least time between two calls of Options.Full.
const quietPeriod = time.Minute

// Limiter bounds the open connections of a server of this process, whose listeners may be several. Clients beyond the
// bound do not wait: another connection is closed for them, so that idle and slow clients cannot keep others from an
// answer, or file descriptors from the data plane. It is safe for concurrent use.
type Limiter struct {
	opt    LimiterOptions
	began  time.Time
	local  *Shares // of clients on this host
	others *Shares

	mu       sync.Mutex
	reported time.Time // the last call of Full
}

// NewLimiter returns a Limiter.
func NewLimiter(o LimiterOptions) *Limiter {
	all := Options{Idle: math.MaxInt64, Always: true} // without a limit: the Limiter has one for both
	return &Limiter{opt: o, began: time.Now(), local: New(all), others: New(all)}
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
// one: of the client address with the most connections, one that has not been used for long.
// It closes connections from this host last, as kubelet probes from here.
func (l *Limiter) Admit(c net.Conn) net.Conn {
	client, local := clientOf(c)
	k := &conn{Conn: c, limiter: l, shares: l.others}
	if local {
		k.shares = l.local
	}
	k.seat.Owner = k
	victim, report := l.add(k, client)
	if victim != nil {
		victim.Owner.Evict(nil)
	}
	if report {
		l.opt.Full()
	}
	return k
}

// now returns the time since the Limiter was made, in nanoseconds.
func (l *Limiter) now() int64 { return int64(time.Since(l.began)) }

// Len returns the number of connections that are open.
func (l *Limiter) Len() int {
	local, _ := l.local.Count()
	others, _ := l.others.Count()
	return int(local + others)
}

// drainPause is the time between two checks for open connections.
const drainPause = 2 * time.Millisecond

// Drain waits until no connection is open, or the context ends. It is for a server that accepts no more:
// http.Server.Shutdown would close the connections whose request has not arrived yet.
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
func (l *Limiter) add(k *conn, client netip.Addr) (victim *Seat, report bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.opt.Max > 0 && l.Len() >= l.opt.Max {
		if victim = l.others.Replace(client, now); victim == nil {
			victim = l.local.Replace(client, now)
		}
		if at := time.Now(); l.opt.Full != nil && (l.reported.IsZero() || at.Sub(l.reported) >= quietPeriod) {
			l.reported, report = at, true
		}
	}
	k.shares.Adopt(client, &k.seat, now)
	return victim, report
}

// clientOf returns the client of a TCP connection, and whether it is on this host; all others are one client.
func clientOf(c net.Conn) (client netip.Addr, local bool) {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}, false
	}
	client = remote.Addr().Unmap().WithZone("")
	own, _ := netip.ParseAddrPort(c.LocalAddr().String()) // not valid: no client has it
	return client, client.IsLoopback() || client == own.Addr().Unmap().WithZone("")
}

// conn is a counted connection.
type conn struct {
	net.Conn
	limiter *Limiter
	shares  *Shares
	seat    Seat
}

func (k *conn) touch() { k.seat.Used.Store(k.limiter.now()) }

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
	k.shares.Release(&k.seat)
	return k.Conn.Close()
}

// Evict implements Owner. It closes the connection and drops data that the client has not read.
func (k *conn) Evict(any) {
	if tcp, ok := k.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // it may be closed already
	}
	_ = k.Conn.Close() // ends the goroutine that serves it
}
