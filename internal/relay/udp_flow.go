package relay

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// flow is the datagrams between one address of a client and a listener. It has a socket of its own to the
// backend. It is used on the loop of its listener only, except for Evict and its Seat.
type flow struct {
	fair.Seat
	listener *udpListener
	settings *settings
	to       netip.AddrPort // the client, whose address may have a zone
	client   netip.Addr     // without a zone
	length   int            // of the last datagram of the client
	hops     uint8          // of the client
	pool     int

	socket  udpSocket        // nil: none
	from    source           // of the socket, for hops
	backend netip.AddrPort   // of the socket
	plan    *plan            // the last one that was seen to have the backend
	tried   []netip.AddrPort // backends that have refused the flow
	replied bool             // the backend has sent a datagram
	refused bool             // the backend has refused the flow, which must have another one
	ended   bool
}

func (l *udpListener) newFlow(client netip.AddrPort) *flow {
	f := &flow{listener: l, settings: l.settings, to: client, client: client.Addr().WithZone("")}
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

// next chooses a backend. It returns false if there is none.
func (f *flow) next() (netip.AddrPort, bool) {
	b := f.settings.balancer
	to, ok := b.pick(f.client, f.pool, f.tried)
	switch {
	case !ok:
		b.counts.failures.Add(1)
	case slices.Contains(f.tried, to): // all have refused: start again
		b.counts.failures.Add(1)
		f.tried = nil
	case len(f.tried) > 0:
		b.counts.retries.Add(1)
	}
	return to, ok
}

// failed records that a backend refuses the flow, or that there is no route to it.
func (f *flow) failed(backend netip.AddrPort) {
	f.settings.balancer.failed(f.client, backend)
	f.tried = append(f.tried, backend)
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
	f.backend, f.plan, f.refused = backend, nil, false
	f.settings.balancer.reached(backend)
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
	f.settings.balancer.ended(f.backend)
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

// onRefusal handles that the backend has refused a datagram. If it has never replied, the flow moves to another one
// with its next datagram.
func (f *flow) onRefusal() {
	switch {
	case f.refused:
	case f.replied:
		f.settings.balancer.failed(f.client, f.backend)
	default:
		f.failed(f.backend)
		f.refused = true
	}
	f.refuse()
}

// current reports whether the flow may keep its backend. While nothing has changed, that costs two comparisons.
func (f *flow) current(s *settings) bool {
	if s != f.settings {
		admission := s.admission(f.client)
		if admission.Refused || s.balancer != f.settings.balancer {
			return false
		}
		f.settings, f.pool = s, admission.Pool
	}
	p := s.balancer.plan.Load()
	if p != f.plan && p.listed[f.backend] == nil {
		return false
	}
	f.plan = p
	return true
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
