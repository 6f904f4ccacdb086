package forward

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// portableUDP forwards the datagrams of a socket with package net: a goroutine for the listener and
// one for each flow. Replies come from the address that the system chooses, which is the one to which
// the client sent unless the socket has an unspecified address.
type portableUDP struct {
	udp      *portableUDPs
	conn     *net.UDPConn
	settings atomic.Pointer[settings]
	readers  sync.WaitGroup

	mu    sync.Mutex
	flows map[netip.AddrPort]*portableFlow
}

// maxDatagram is the size of the largest datagram.
const maxDatagram = 65535

// A flow is checked some times per timeout, and at least this often: it may be idle, or its backend may
// have left.
const (
	checks   = 4
	maxCheck = 5 * time.Second
)

// portableUDPs is the UDP half of portable.
type portableUDPs struct {
	*udp
	system  *portable
	started chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex
	listeners map[*portableUDP]struct{}
}

func (u *portableUDPs) init(p *portable) {
	u.udp, u.system = newUDP(p.engine), p
	u.started, u.listeners = make(chan struct{}), map[*portableUDP]struct{}{}
}

func (u *portableUDPs) start() { close(u.started) }

// end closes all listeners and waits for them.
func (u *portableUDPs) end() {
	for _, l := range u.all() {
		l.close()
	}
	u.running.Wait()
}

func (u *portableUDPs) all() []*portableUDP {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.listeners))
}

// left ends the flows to backends that have left all pools of a Balancer.
func (u *portableUDPs) left(b *Balancer) {
	for _, l := range u.all() {
		if l.settings.Load().balancer == b {
			l.sweep()
		}
	}
}

// listen opens a listener.
func (u *portableUDPs) listen(l *Listener) (server, error) {
	var conn *net.UDPConn
	err := u.system.open(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.spec.Addr))
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &portableUDP{udp: u, conn: conn, flows: map[netip.AddrPort]*portableFlow{}}
	p.set(&settings{balancer: l.spec.Balancer, admit: l.spec.Admit})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.listeners[p] = struct{}{}
	u.running.Go(func() {
		<-u.started
		p.run()
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.listeners, p)
	})
	return p, nil
}

// dial opens a socket to a backend.
func (u *portableUDPs) dial(to netip.AddrPort) (conn *net.UDPConn, err error) {
	err = u.system.open(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	return conn, err
}

func (l *portableUDP) addr() netip.AddrPort { return l.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (l *portableUDP) set(s *settings) {
	l.settings.Store(s)
	l.sweep()
}

func (l *portableUDP) close() { _ = l.conn.Close() }

// sweep ends the flows that may not go on.
func (l *portableUDP) sweep() {
	for _, f := range l.all() {
		f.check()
	}
}

// run forwards datagrams until the socket is closed. Then it ends all flows.
func (l *portableUDP) run() {
	buffer := make([]byte, maxDatagram)
	for {
		n, from, err := l.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			time.Sleep(time.Millisecond) // an error about an earlier datagram, or no memory
			continue
		}
		if f := l.flow(from); f != nil {
			f.send(buffer[:n])
		}
	}
	for _, f := range l.all() {
		f.end()
	}
	l.readers.Wait()
}

func (l *portableUDP) all() []*portableFlow {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.flows))
}

// flow returns the flow of a client, which it begins if there is none. It returns nil if the client is
// refused. Only run calls it.
func (l *portableUDP) flow(from netip.AddrPort) *portableFlow {
	l.mu.Lock()
	f := l.flows[from]
	l.mu.Unlock()
	if f != nil && f.check() {
		return f
	}
	s := l.settings.Load()
	client := from.Addr().Unmap()
	admission := s.admission(client)
	if admission.Refused {
		s.balancer.counts.refused.Add(1)
		return nil
	}
	f = &portableFlow{listener: l, from: from}
	f.choice = choice{settings: s, client: client, pool: admission.Pool}
	f.owner = f
	evicted, ok := l.udp.shares.take(client, &f.seat, l.udp.system.clock())
	if !ok {
		l.udp.engine.refuse(s.balancer, reasonFlows)
		return nil
	}
	if evicted != nil {
		evicted.owner.evict(nil)
	}
	s.balancer.counts.connections.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connect() {
		f.ended = true
		l.udp.shares.release(&f.seat)
		return nil
	}
	s.balancer.counts.open.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows[from] = f
	return f
}

// portableFlow is the datagrams of one address of a client.
type portableFlow struct {
	seat
	listener *portableUDP
	from     netip.AddrPort

	mu sync.Mutex
	choice
	conn  *net.UDPConn
	ended bool
}

// evict implements evicter.
func (f *portableFlow) evict(any) { f.end() }

// check reports whether the flow can go on. It ends a flow whose backend has left.
func (f *portableFlow) check() bool {
	f.mu.Lock()
	good := !f.ended && f.current(f.listener.settings.Load())
	f.mu.Unlock()
	if !good {
		f.end()
	}
	return good
}

// connect opens a socket to a backend, and counts why it returns false. The caller holds mu.
func (f *portableFlow) connect() bool {
	u, b := f.listener.udp, f.settings.balancer
	for range u.attempts {
		to, ok := f.next()
		if !ok {
			u.engine.unreported.Add(1)
			return false
		}
		conn, err := u.dial(to)
		if err == nil {
			f.conn = conn
			f.connected(to)
			f.listener.readers.Go(func() { f.read(conn) })
			return true
		}
		if reason := shortage(err); reason != "" {
			u.engine.refuse(b, reason)
			return false
		}
		f.failed(to)
	}
	b.counts.failures.Add(1)
	u.engine.unreported.Add(1)
	return false
}

// onRefusal handles that the backend has refused a datagram. The client is not informed.
func (f *portableFlow) onRefusal() {
	f.choice.onRefusal()
	f.listener.udp.engine.unreported.Add(1)
}

// end ends the flow.
func (f *portableFlow) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	l := f.listener
	l.udp.shares.release(&f.seat)
	f.disconnect()
	f.settings.balancer.counts.open.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flows[f.from] == f {
		delete(l.flows, f.from)
	}
}

// disconnect closes the socket to the backend, if there is one. Its reader ends.
func (f *portableFlow) disconnect() {
	if f.conn == nil {
		return
	}
	_ = f.conn.Close()
	f.conn = nil
	f.disconnected()
}

// send sends a datagram to the backend. A flow whose backend has refused all datagrams moves to the
// next backend first.
func (f *portableFlow) send(data []byte) {
	f.mu.Lock()
	good := f.write(data)
	f.mu.Unlock()
	if !good {
		f.end()
	}
}

// write returns false if the flow has no backend any more. The caller holds mu.
func (f *portableFlow) write(data []byte) bool {
	f.used.Store(f.listener.udp.system.clock())
	f.settings.balancer.counts.received.Add(int64(len(data)))
	const tries = 3 // a refusal of an earlier datagram is reported in place of sending
	for range tries {
		if f.ended {
			return true
		}
		if f.refused {
			f.disconnect()
			if !f.connect() {
				return false
			}
		}
		_, err := f.conn.Write(data)
		if !refusal(err) {
			return true // any other error loses the datagram, as a network may
		}
		f.onRefusal()
	}
	return true
}

// read sends the replies of a socket to the client, until it is closed or the flow is idle.
func (f *portableFlow) read(conn *net.UDPConn) {
	l := f.listener
	buffer := make([]byte, maxDatagram)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(min(l.udp.timeout/checks, maxCheck)))
		n, err := conn.Read(buffer)
		switch {
		case err == nil:
			f.reply(buffer[:n])
		case errors.Is(err, net.ErrClosed):
			return
		case refusal(err):
			f.mu.Lock()
			if f.conn == conn {
				f.onRefusal()
			}
			f.mu.Unlock()
		case l.udp.system.clock()-f.used.Load() >= int64(l.udp.timeout):
			f.end()
			return
		default:
			f.check()
		}
	}
}

// refusal reports whether a host has refused an earlier datagram. Windows reports it as a reset.
func refusal(err error) bool { return is(err, syscall.ECONNREFUSED) || is(err, syscall.ECONNRESET) }

// reply sends a datagram to the client.
func (f *portableFlow) reply(data []byte) {
	f.mu.Lock()
	f.replied = true
	counts := &f.settings.balancer.counts
	f.mu.Unlock()
	f.used.Store(f.listener.udp.system.clock())
	counts.sent.Add(int64(len(data)))
	_, _ = f.listener.conn.WriteToUDPAddrPort(data, f.from)
}
