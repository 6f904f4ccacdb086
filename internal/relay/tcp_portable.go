package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// portableTCP is the TCP half of portable: a goroutine for each listener, and two for each connection.
type portableTCP struct {
	*portable
	running chan struct{} // closed when connections may be accepted
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup

	mu      sync.Mutex
	servers map[*portableServer]struct{}
	conns   map[*portableConn]struct{}
}

func (t *portableTCP) init(p *portable) {
	t.portable, t.running = p, make(chan struct{})
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.servers, t.conns = map[*portableServer]struct{}{}, map[*portableConn]struct{}{}
}

func (t *portableTCP) start() { close(t.running) }

// end resets all connections and closes all listeners.
func (t *portableTCP) end() {
	t.cancel()
	t.mu.Lock()
	for s := range t.servers {
		_ = s.listener.Close()
	}
	for c := range t.conns {
		c.abort()
	}
	t.mu.Unlock()
	t.wait.Wait()
}

// left makes connections to backends that have left drain.
func (t *portableTCP) left(b *Balancer, gone []netip.AddrPort) {
	left := map[netip.AddrPort]bool{}
	for _, addr := range gone {
		left[addr] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		if c.settings.balancer == b && left[c.backend] {
			c.drain()
		}
	}
}

// portableServer is a listening socket.
type portableServer struct {
	tcp      *portableTCP
	listener *net.TCPListener
	settings atomic.Pointer[settings]
	closed   atomic.Bool
}

func (t *portableTCP) listen(spec Spec) (server, error) {
	var listener *net.TCPListener
	err := t.open(func() (err error) {
		listener, err = t.socket(spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &portableServer{tcp: t, listener: listener}
	s.set(spec.settings())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.servers[s] = struct{}{}
	t.wait.Go(s.accept)
	return s, nil
}

// socket opens a listening socket.
func (t *portableTCP) socket(s Spec) (*net.TCPListener, error) {
	network := "tcp6"
	if s.Addr.Addr().Is4() {
		network = "tcp4"
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(t.ctx, network, s.Addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// addr implements server.
func (s *portableServer) addr() netip.AddrPort {
	at, _ := netip.ParseAddrPort(s.listener.Addr().String()) // package net formats it
	return at
}

// set implements server.
func (s *portableServer) set(to *settings) { s.settings.Store(to) }

// close implements server.
func (s *portableServer) close() {
	s.closed.Store(true)
	_ = s.listener.Close() // the port is free, whatever it returns
	s.tcp.mu.Lock()
	defer s.tcp.mu.Unlock()
	delete(s.tcp.servers, s)
	for c := range s.tcp.conns {
		if c.server == s {
			c.drain()
		}
	}
}

// accept accepts connections until the listener is closed.
func (s *portableServer) accept() {
	select {
	case <-s.tcp.running:
	case <-s.tcp.ctx.Done():
	}
	for {
		client, err := s.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more file descriptors, or a connection that was reset before
			if reason := shortage(err); reason != "" {
				s.tcp.engine.refuse(reason)
			}
			time.Sleep(acceptPause)
			continue
		}
		s.accepted(client)
	}
}

// accepted starts a connection, or refuses it.
func (s *portableServer) accepted(client *net.TCPConn) {
	t, to := s.tcp, s.settings.Load()
	c := &portableConn{server: s, settings: to, client: client}
	c.seat.Owner = c
	c.peer, _ = netip.ParseAddrPort(client.RemoteAddr().String()) // package net formats it
	c.peer = netip.AddrPortFrom(c.peer.Addr().Unmap().WithZone(""), c.peer.Port())
	admission := to.admission(c.peer.Addr())
	c.pool = admission.Pool
	if admission.Refused {
		c.abort()
		return
	}
	evicted, ok := t.engine.connections.Take(c.peer.Addr(), &c.seat, t.clock())
	if evicted != nil {
		evicted.Owner.Evict(nil)
	}
	if !ok {
		t.engine.refuse(reasonConnections)
		c.abort()
		return
	}
	to.balancer.counts.connections.Add(1)
	to.balancer.counts.open.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	t.wait.Go(func() {
		c.run()
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
		to.balancer.counts.open.Add(-1)
		t.engine.connections.Release(&c.seat)
	})
}

// portableConn is a connection of a client, and the one to its backend.
type portableConn struct {
	seat     fair.Seat
	server   *portableServer
	settings *settings
	pool     int
	client   *net.TCPConn
	peer     netip.AddrPort

	// They change with portableTCP.mu held.
	remote   *net.TCPConn // nil: not yet
	backend  netip.AddrPort
	draining *time.Timer
}

// abort resets both sides. The caller holds portableTCP.mu, or is alone.
func (c *portableConn) abort() {
	for _, side := range []*net.TCPConn{c.client, c.remote} {
		if side != nil {
			_ = side.SetLinger(0) // an error means that it is closed
			_ = side.Close()
		}
	}
}

// Evict implements fair.Owner.
func (c *portableConn) Evict(any) {
	c.server.tcp.engine.refuse(reasonConnections)
	c.locked((*portableConn).abort)
}

// drain makes the connection end after a time, unless its backend returns. The caller holds portableTCP.mu.
func (c *portableConn) drain() {
	if c.draining != nil {
		c.draining.Stop()
	}
	c.draining = time.AfterFunc(c.server.tcp.engine.options.Drain, func() {
		c.server.tcp.mu.Lock()
		defer c.server.tcp.mu.Unlock()
		if c.server.closed.Load() || !c.settings.balancer.has(c.backend) {
			c.abort()
		}
	})
}

// run forwards until both sides have ended.
func (c *portableConn) run() {
	t, b := c.server.tcp, c.settings.balancer
	remote, backend := c.connect()
	t.mu.Lock()
	c.remote, c.backend = remote, backend
	if remote == nil || t.ctx.Err() != nil {
		c.abort()
	} else if c.server.closed.Load() || !b.has(backend) {
		c.drain()
	}
	t.mu.Unlock()
	if remote == nil {
		return
	}
	defer b.ended(backend)
	if b.plan.Load().ProxyHeader {
		to, _ := netip.ParseAddrPort(c.client.LocalAddr().String()) // package net formats it
		to = netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
		if _, err := remote.Write(proxyHeader(c.peer, to)); err != nil {
			c.locked((*portableConn).abort)
			return
		}
	}
	var down sync.WaitGroup
	down.Go(func() { c.copy(c.client, remote, &b.counts.sent) })
	c.copy(remote, c.client, &b.counts.received)
	down.Wait()
	c.locked(func(c *portableConn) {
		_, _ = c.client.Close(), remote.Close()
		if c.draining != nil {
			c.draining.Stop()
		}
	})
}

func (c *portableConn) locked(f func(*portableConn)) {
	c.server.tcp.mu.Lock()
	defer c.server.tcp.mu.Unlock()
	f(c)
}

// copy moves one direction, and passes on its end or its error.
func (c *portableConn) copy(to, from *net.TCPConn, count *atomic.Int64) {
	n, err := io.Copy(used{to, c}, from)
	count.Add(n)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		c.locked((*portableConn).abort)
	}
}

// used is a socket of a connection that is used by writing.
type used struct {
	to   *net.TCPConn
	conn *portableConn
}

// Write implements io.Writer.
func (u used) Write(b []byte) (int, error) {
	u.conn.seat.Used.Store(u.conn.server.tcp.clock())
	return u.to.Write(b)
}

// connect connects to a backend; nil: no attempt succeeded.
func (c *portableConn) connect() (*net.TCPConn, netip.AddrPort) {
	t, b := c.server.tcp, c.settings.balancer
	var tried []netip.AddrPort
	var reason string
	for i, timeout := range t.engine.options.Attempts {
		to, ok := b.pick(c.peer.Addr(), c.pool, tried)
		if !ok || t.ctx.Err() != nil {
			break
		}
		if i > 0 {
			b.counts.retries.Add(1)
		}
		b.reached(to)
		var remote net.Conn
		dialer := net.Dialer{Timeout: timeout}
		dialer.SetMultipathTCP(false)
		err := t.open(func() (err error) {
			remote, err = dialer.DialContext(t.ctx, "tcp", to.String())
			return err
		})
		if err == nil {
			return remote.(*net.TCPConn), to
		}
		b.ended(to)
		tried = append(tried, to)
		if reason = shortage(err); reason == reasonFiles || reason == reasonMemory {
			break
		}
		if reason == "" {
			b.failed(c.peer.Addr(), to)
		}
	}
	if reason != "" {
		t.engine.refuse(reason)
		return nil, netip.AddrPort{}
	}
	b.counts.failures.Add(1)
	return nil, netip.AddrPort{}
}
