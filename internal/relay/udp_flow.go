package relay

import (
	"net/netip"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// flow is the datagrams between one address of a client and a listener. It has a socket of its own to the
// backend. It is used on the loop of its listener only, except for Evict and its Seat.
type flow struct {
	fair.Seat
	choice
	listener *udpListener
	to       netip.AddrPort // the client, whose address may have a zone
	socket   udpSocket      // nil: none
	from     source         // of the socket, for hops
	length   int            // of the last datagram of the client
	hops     uint8          // of the client
	ended    bool
}

func (l *udpListener) newFlow(client netip.AddrPort) *flow {
	f := &flow{listener: l, to: client}
	f.choice = choice{settings: l.settings, client: client.Addr().WithZone("")}
	f.Owner = f
	return f
}

// Evict implements fair.Owner.
func (f *flow) Evict(by any) {
	if by == f.listener.loop {
		f.listener.end(f)
		return
	}
	f.listener.loop.Post(func() {
		if !f.ended {
			f.listener.end(f)
		}
	})
}

// connect opens a socket to a backend. It tries others if there is no route to one. It counts why it returns false.
func (f *flow) connect() bool {
	e := f.listener.loop.udp.engine
	for range e.options.Attempts {
		to, ok := f.next()
		if !ok {
			f.refuse()
			return false
		}
		err := f.open(to)
		if err == nil {
			return true
		}
		if reason := shortage(err); reason != "" {
			e.refuse(reason)
			return false
		}
		f.failed(to)
	}
	f.settings.balancer.counts.failures.Add(1)
	f.refuse()
	return false
}

// open opens a socket to a backend.
func (f *flow) open(backend netip.AddrPort) error {
	loop := f.listener.loop
	s, err := loop.udp.host.dial(backend)
	if err != nil {
		return err
	}
	if err := loop.watch(s, f.ready); err != nil {
		loop.close(s)
		return err
	}
	f.socket, f.from = s, source{UDP, s.local()}
	loop.udp.engine.hops.begin(f.from, backend, f.hops)
	f.connected(backend)
	return nil
}

// disconnect closes the socket to the backend, if there is one.
func (f *flow) disconnect() {
	if f.socket == nil {
		return
	}
	loop := f.listener.loop
	loop.udp.engine.hops.end(f.from, f.backend)
	loop.close(f.socket)
	f.socket = nil
	f.disconnected()
}

// send sends a datagram to the backend. A flow whose backend has refused all datagrams moves to the next backend first.
func (f *flow) send(data []byte) {
	f.length = len(data)
	f.settings.balancer.counts.received.Add(int64(len(data)))
	const tries = 3 // a refusal of an earlier datagram is reported in place of sending
	for range tries {
		if f.refused {
			f.disconnect()
			if !f.connect() {
				f.listener.end(f)
				return
			}
		}
		if !refusal(f.socket.send(data)) {
			return // any other error loses the datagram, as a network may
		}
		f.onRefusal()
	}
}

// ready sends replies of the backend to the client.
func (f *flow) ready() {
	loop := f.listener.loop
	loop.event()
	for range maxReceive {
		n, _, err := f.socket.receive(loop.buffer)
		if refusal(err) {
			f.onRefusal()
		}
		if err != nil {
			return
		}
		f.replied = true
		f.Used.Store(int64(loop.now))
		f.settings.balancer.counts.sent.Add(int64(n))
		f.listener.socket.sendTo(loop.buffer[:n], f.to)
	}
}

// onRefusal handles that the backend has refused a datagram.
func (f *flow) onRefusal() {
	f.choice.onRefusal()
	f.refuse()
}

// refuse informs the client that its last datagram was refused.
func (f *flow) refuse() {
	u := f.listener.loop.udp
	if !u.host.refuse(f.to, f.listener.at, f.length) {
		u.engine.unreported.Add(1)
	}
}

// refusal reports whether a host has refused an earlier datagram. Windows reports it as a reset.
func refusal(err error) bool { return is(err, syscall.ECONNREFUSED) || is(err, syscall.ECONNRESET) }
