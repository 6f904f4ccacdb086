package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// portableServer is a server: a listening socket.
type portableServer struct {
	system   *portable
	listener *net.TCPListener
	settings atomic.Pointer[settings]
	closed   atomic.Bool
}

func (p *portable) listenTCP(spec Spec) (server, error) {
	network := "tcp6"
	if spec.Addr.Addr().Is4() {
		network = "tcp4"
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	var listener net.Listener
	err := p.open(func() (err error) {
		listener, err = config.Listen(p.ctx, network, spec.Addr.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &portableServer{system: p, listener: listener.(*net.TCPListener)}
	s.set(spec.settings())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers[s] = struct{}{}
	p.wait.Go(s.accept)
	return s, nil
}

func (s *portableServer) addr() netip.AddrPort { return addrOf(s.listener.Addr()) }

func (s *portableServer) set(to *settings) { s.settings.Store(to) }

func (s *portableServer) close() {
	s.closed.Store(true)
	_ = s.listener.Close() // the port is free, whatever it returns
	s.system.mu.Lock()
	defer s.system.mu.Unlock()
	delete(s.system.servers, s)
	for c := range s.system.conns {
		if c.server == s {
			c.drain()
		}
	}
}

// accept accepts connections until the listener is closed.
func (s *portableServer) accept() {
	select {
	case <-s.system.running:
	case <-s.system.ctx.Done():
	}
	for {
		client, err := s.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more file descriptors, or a connection that was reset before
			if reason := shortage(err); reason != "" {
				s.system.engine.refuse(reason)
			}
			time.Sleep(acceptPause)
			continue
		}
		s.accepted(client)
	}
}

// accepted starts a connection, or refuses it.
func (s *portableServer) accepted(client *net.TCPConn) {
	t, to := s.system, s.settings.Load()
	c := &portableConn{server: s, settings: to, client: client}
	c.seat.Owner = c
	peer := addrOf(client.RemoteAddr())
	c.peer = netip.AddrPortFrom(peer.Addr().WithZone(""), peer.Port())
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

	// They change with portable.mu held.
	remote   *net.TCPConn // nil: not yet
	backend  netip.AddrPort
	draining *time.Timer
}

// abort resets both sides. The caller holds portable.mu, or is alone.
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
	c.server.system.engine.refuse(reasonConnections)
	c.locked((*portableConn).abort)
}

// drain makes the connection end after a time, unless its backend returns. The caller holds portable.mu.
func (c *portableConn) drain() {
	if c.draining != nil {
		c.draining.Stop()
	}
	c.draining = time.AfterFunc(c.server.system.engine.options.Drain, func() {
		c.server.system.mu.Lock()
		defer c.server.system.mu.Unlock()
		if c.server.closed.Load() || !c.settings.balancer.has(c.backend) {
			c.abort()
		}
	})
}

// run forwards until both sides have ended.
func (c *portableConn) run() {
	t, b := c.server.system, c.settings.balancer
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
		if _, err := remote.Write(proxyHeader(c.peer, addrOf(c.client.LocalAddr()))); err != nil {
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
	c.server.system.mu.Lock()
	defer c.server.system.mu.Unlock()
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
	u.conn.seat.Used.Store(u.conn.server.system.clock())
	return u.to.Write(b)
}

// connect connects to a backend; nil: no attempt succeeded.
func (c *portableConn) connect() (*net.TCPConn, netip.AddrPort) {
	t, b := c.server.system, c.settings.balancer
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
