package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// portable is the system of all others than Linux: goroutines over package net. It is built on
// Linux too, for its tests.
type portable struct {
	engine *Engine
	udp    *udp
	loop   *plainUDP // of udp

	running chan struct{} // closed when connections of TCP may be accepted
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup // for the goroutines of TCP: one for each listener, and two for each connection

	mu      sync.Mutex
	servers map[*portableServer]struct{}
	conns   map[*portableConn]struct{}
}

func newPortable(e *Engine) *portable {
	p := &portable{
		engine: e, loop: newPlainUDP(e.options.NetNS), running: make(chan struct{}),
		servers: map[*portableServer]struct{}{}, conns: map[*portableConn]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.udp = &udp{engine: e, host: p.loop}
	p.udp.add(p.loop)
	return p
}

// open calls a function that opens sockets in the network namespace of the Engine, which only tests on Linux set.
func (p *portable) open(open func() error) error { return netns.Do(p.engine.options.NetNS, open) }

func (p *portable) clock() int64 { return int64(time.Since(p.engine.start)) }

func (p *portable) listen(s Spec) (server, error) {
	if f := s.Inherited; f != nil {
		return nil, errors.Join(errNoHandover, f.Close())
	}
	switch s.Protocol {
	case TCP:
		return p.listenTCP(s)
	case UDP:
		return p.udp.listen(s)
	}
	return nil, syscall.EPROTONOSUPPORT
}

func (p *portable) run(ctx context.Context) error {
	close(p.running)
	ended := context.AfterFunc(ctx, func() {
		p.loop.Post(func() {
			p.udp.loops[0].reset()
			p.loop.end()
		})
	})
	defer ended()
	p.loop.run()
	p.cancel()
	p.mu.Lock()
	for s := range p.servers {
		_ = s.listener.Close()
	}
	for c := range p.conns {
		c.abort()
	}
	p.mu.Unlock()
	p.wait.Wait()
	return nil
}

func (p *portable) left(b *Balancer, gone []netip.AddrPort) {
	p.udp.left(b)
	left := map[netip.AddrPort]bool{}
	for _, addr := range gone {
		left[addr] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.settings.balancer == b && left[c.backend] {
			c.drain()
		}
	}
}

// plainUDP is the eventLoop and udpHost of all systems except Linux, over package net: a goroutine waits for each
// socket. Replies come from the address that the system chooses, which is the one to which the client sent unless the
// socket has an unspecified address. Refusals are not reported to clients. It is built on Linux too, for its tests.
type plainUDP struct {
	netNS   int           // of its sockets
	wake    chan struct{} // has room for one
	readers sync.WaitGroup

	mu    sync.Mutex
	queue []func() // to call
	ended bool
}

func newPlainUDP(netNS int) *plainUDP { return &plainUDP{netNS: netNS, wake: make(chan struct{}, 1)} }

// run calls functions until end is called.
func (p *plainUDP) run() {
	for range p.wake {
		p.mu.Lock()
		queue := slices.Clip(p.queue)
		p.queue = nil
		p.mu.Unlock()
		for _, f := range queue {
			f()
		}
		if p.ended {
			break
		}
	}
	p.readers.Wait()
}

// end makes run return. It is called on the loop, when all sockets are closed.
func (p *plainUDP) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// Post implements eventLoop.
func (p *plainUDP) Post(f func()) { p.post(f) }

// post returns false if the loop has ended.
func (p *plainUDP) post(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.queue = append(p.queue, f)
	select {
	case p.wake <- struct{}{}:
	default: // it is awake
	}
	return true
}

func (p *plainUDP) after(d time.Duration, f func()) { time.AfterFunc(d, func() { p.Post(f) }) }

func (p *plainUDP) watch(s udpSocket, ready func()) error {
	p.readers.Go(func() { s.(*plainSocket).read(p, ready) })
	return nil
}

func (*plainUDP) close(s udpSocket) {
	c := s.(*plainSocket)
	c.closed = true
	_ = c.conn.Close()
}

func (p *plainUDP) listen(s Spec) (udpSocket, error) {
	return p.socket(func() (*net.UDPConn, error) { return net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.Addr)) })
}

func (p *plainUDP) dial(to netip.AddrPort) (udpSocket, error) {
	return p.socket(func() (*net.UDPConn, error) { return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) })
}

func (p *plainUDP) socket(open func() (*net.UDPConn, error)) (udpSocket, error) {
	s := &plainSocket{buffer: make([]byte, maxDatagram)}
	err := netns.Do(p.netNS, func() (err error) {
		s.conn, err = open()
		return err
	})
	return s, err
}

func (*plainUDP) refuse(netip.AddrPort, netip.AddrPort, int) bool { return false }

// plainSocket is a udpSocket of package net. Its fields belong to the loop while that calls ready, else to its reader.
type plainSocket struct {
	conn   *net.UDPConn
	buffer []byte
	size   int
	sender netip.AddrPort
	err    error
	unread bool // ready has not received it yet
	closed bool // of the loop
}

// read receives datagrams until the socket is closed, and calls ready on the loop after each.
func (s *plainSocket) read(on *plainUDP, ready func()) {
	done := make(chan struct{}, 1)
	for {
		s.size, s.sender, s.err = s.conn.ReadFromUDPAddrPort(s.buffer)
		if errors.Is(s.err, net.ErrClosed) {
			return
		}
		going := on.post(func() {
			if s.unread = true; !s.closed {
				ready()
			}
			done <- struct{}{}
		})
		if !going {
			return
		}
		<-done
		if s.err != nil && !refusal(s.err) {
			time.Sleep(time.Millisecond) // an error about an earlier datagram, or no memory
		}
	}
}

func (s *plainSocket) local() netip.AddrPort { return addrOf(s.conn.LocalAddr()) }

func (s *plainSocket) receive(b []byte) (int, netip.AddrPort, error) {
	if !s.unread {
		return 0, netip.AddrPort{}, syscall.EAGAIN
	}
	s.unread = false
	return copy(b, s.buffer[:s.size]), netip.AddrPortFrom(s.sender.Addr().Unmap(), s.sender.Port()), s.err
}

func (s *plainSocket) send(b []byte) error {
	_, err := s.conn.Write(b)
	return err
}

func (s *plainSocket) sendTo(b []byte, to netip.AddrPort) { _, _ = s.conn.WriteToUDPAddrPort(b, to) }
