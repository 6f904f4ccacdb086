package relay

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// udp is the state that the UDP listeners of an Engine share.
type udp struct {
	engine *Engine
	host   udpHost
	loops  []*udpLoop

	mu   sync.Mutex
	next int // the loop of the next listener
}

// udpHost opens the sockets of UDP. It is safe for concurrent use.
type udpHost interface {
	listen(s Spec) (udpSocket, error)

	// dial opens a socket to a backend.
	dial(to netip.AddrPort) (udpSocket, error)

	// refuse informs a client that its last datagram, of some length, was refused. It reports whether that was possible.
	refuse(client, to netip.AddrPort, length int) bool
}

// eventLoop calls functions one after another.
type eventLoop interface {
	// Post calls a function soon, unless the loop has ended. Any goroutine may call it.
	Post(f func())

	// after calls a function after a time.
	after(d time.Duration, f func())

	// watch calls a function when there may be something to read from a socket.
	watch(s udpSocket, ready func()) error

	// close closes a socket, which it stops to watch.
	close(s udpSocket)
}

// idleFraction is the part of the timeout after which a flow may end for a new one of another client, and how often
// flows are checked.
const idleFraction = 16

// add adds a loop on which listeners can be.
func (u *udp) add(l eventLoop) *udpLoop {
	loop := &udpLoop{eventLoop: l, udp: u, buffer: make([]byte, maxDatagram), listeners: map[*udpListener]struct{}{}}
	u.loops = append(u.loops, loop)
	return loop
}

// left ends the flows to backends that have left all pools of a Balancer.
func (u *udp) left(b *Balancer) {
	for _, loop := range u.loops {
		loop.Post(func() { loop.left(b) })
	}
}

// listen opens a listener. Each belongs to one loop, so that the datagrams of a flow stay in order.
func (u *udp) listen(spec Spec) (server, error) {
	s, err := u.host.listen(spec)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p := &udpListener{
		loop: u.loops[u.next%len(u.loops)], socket: s, at: s.local(), flows: map[netip.AddrPort]*flow{},
		settings: spec.settings(),
	}
	u.next++
	p.loop.Post(p.start)
	return p, nil
}

// udpLoop is the state that the UDP listeners of an eventLoop share. It is used on that loop only.
type udpLoop struct {
	eventLoop
	udp       *udp
	buffer    []byte        // for a datagram
	now       time.Duration // since the start of the engine, of the last event
	waiting   bool          // for the next sweep
	listeners map[*udpListener]struct{}
}

// event sets the time of the last event.
func (l *udpLoop) event() { l.now = time.Since(l.udp.engine.start) }

func (l *udpLoop) left(b *Balancer) {
	for listener := range l.listeners {
		if listener.settings.balancer == b {
			listener.sweep()
		}
	}
}

// wait makes the loop look for idle flows after a time.
func (l *udpLoop) wait() {
	if !l.waiting {
		l.waiting = true
		l.after(max(l.udp.engine.options.UDPTimeout/idleFraction, time.Millisecond), l.sweep)
	}
}

// sweep ends flows that are idle, and those to backends that have left.
func (l *udpLoop) sweep() {
	l.waiting = false
	l.event()
	for listener := range l.listeners {
		listener.sweep()
		if len(listener.flows) > 0 {
			l.wait()
		}
	}
}

// reset closes all listeners.
func (l *udpLoop) reset() {
	for listener := range l.listeners {
		listener.reset()
	}
}

// udpListener forwards the datagrams of a socket. It is used on its loop only, except as a server.
type udpListener struct {
	loop     *udpLoop
	socket   udpSocket
	at       netip.AddrPort
	settings *settings
	flows    map[netip.AddrPort]*flow // by the address of the client
	closed   bool
}

func (l *udpListener) addr() netip.AddrPort { return l.at }

func (l *udpListener) set(s *settings) {
	l.loop.Post(func() {
		l.settings = s
		l.sweep()
	})
}

func (l *udpListener) close() { l.loop.Post(l.reset) }

// start makes the loop watch the socket.
func (l *udpListener) start() {
	if l.closed {
		return
	}
	l.loop.listeners[l] = struct{}{}
	if err := l.loop.watch(l.socket, l.ready); err != nil {
		l.loop.udp.engine.options.Log.Error("Cannot receive datagrams on a UDP listener yet, retrying", "error", err)
		l.loop.after(acceptPause, l.start) // no memory
	}
}

// reset closes the socket and ends all flows.
func (l *udpListener) reset() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.loop.listeners, l)
	for _, f := range l.flows {
		l.end(f)
	}
	l.loop.close(l.socket)
}

// maxReceive is how many datagrams are received before other work continues.
const maxReceive = 32

// ready forwards the datagrams that wait in the socket.
func (l *udpListener) ready() {
	l.loop.event()
	for range maxReceive {
		n, client, err := l.socket.receive(l.loop.buffer)
		if err != nil {
			return
		}
		l.forward(client, l.loop.buffer[:n])
	}
}

// forward sends a datagram of a client to the backend of its flow.
func (l *udpListener) forward(client netip.AddrPort, data []byte) {
	f := l.flows[client]
	if f != nil && !f.current(l.settings) {
		l.end(f)
		f = nil
	}
	if f == nil {
		f = l.newFlow(client)
		f.length = len(data)
		if !l.begin(f) {
			return
		}
	}
	f.Used.Store(int64(l.loop.now))
	f.send(data)
}

// begin opens a flow for a datagram. It returns false if the datagram is refused.
func (l *udpListener) begin(f *flow) bool {
	e, s := l.loop.udp.engine, l.settings
	admission := s.admission(f.client)
	f.pool, f.hops = admission.Pool, e.hops.of(source{UDP, netip.AddrPortFrom(f.client, f.to.Port())}).count
	switch {
	case f.hops >= maxHops:
		e.refuse(reasonLoop)
		return false
	case admission.Refused:
		return false
	}
	evicted, ok := e.flows.Take(f.client, &f.Seat, int64(l.loop.now))
	if evicted != nil {
		evicted.Owner.Evict(l.loop)
	}
	if !ok {
		e.refuse(reasonFlows)
		return false
	}
	s.balancer.counts.connections.Add(1)
	if !f.connect() {
		f.ended = true
		e.flows.Release(&f.Seat)
		return false
	}
	s.balancer.counts.open.Add(1)
	l.flows[f.to] = f
	l.loop.wait()
	return true
}

func (l *udpListener) end(f *flow) {
	f.disconnect()
	l.loop.udp.engine.flows.Release(&f.Seat)
	delete(l.flows, f.to)
	f.settings.balancer.counts.open.Add(-1)
	f.ended = true
}

// sweep ends the flows that are idle, and those to backends that have left all pools.
func (l *udpListener) sweep() {
	timeout := l.loop.udp.engine.options.UDPTimeout
	for _, f := range l.flows {
		if l.loop.now-time.Duration(f.Used.Load()) >= timeout || !f.current(l.settings) {
			l.end(f)
		}
	}
}

// maxDatagram is the size of the largest datagram.
const maxDatagram = 65535

// udpSocket is a UDP socket. It is used on one loop.
type udpSocket interface {
	local() netip.AddrPort

	// receive receives a datagram, and returns its size and its sender. It returns EAGAIN if there is none.
	receive(b []byte) (int, netip.AddrPort, error)

	// send sends a datagram on a connected socket, or drops it if the kernel does not take it.
	send(b []byte) error

	// sendTo sends a datagram to an address, or drops it if the kernel does not take it.
	sendTo(b []byte, to netip.AddrPort)
}

// addrOf returns an address of package net, one of IPv4 as such.
func addrOf(a net.Addr) netip.AddrPort {
	at := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
