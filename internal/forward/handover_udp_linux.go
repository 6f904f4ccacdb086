package forward

import (
	"cmp"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// handOver adds the socket and the flows, and takes them out of the loop.
func (l *udpListener) handOver(w *worker, to *Handed) {
	l.closed = true
	delete(l.loop.listeners, l)
	fd := l.socket.(*fdSocket).fd
	_ = w.Remove(fd) // it may not be in the loop yet
	to.Socket = fd
	for _, f := range l.flows {
		if !f.refused && f.current(l.settings) { // otherwise the next datagram begins another one
			to.Flows = append(to.Flows, f.handOver(w))
		}
		l.end(f)
	}
}

// handOver takes the socket to the backend out of the flow.
func (f *flow) handOver(w *worker) Flow {
	loop := f.listener.loop
	s := Flow{
		Socket: f.socket.(*fdSocket).fd, Client: f.path.client, Local: f.path.local, Backend: f.backend, Pool: f.pool, Hops: f.hops,
		Idle: time.Since(loop.udp.engine.start) - time.Duration(f.Used.Load()), Port: f.port, Replied: f.replied,
	}
	loop.udp.engine.hops.end(f.from, f.backend)
	_ = w.Remove(s.Socket) // it is in the loop
	loop.udp.host.release(f.backend, f.port)
	f.socket = nil
	f.disconnected()
	return s
}

// adopt implements adopter. The flow that is idle for longest is adopted first, and so is the first to end for another one.
func (l *udpListener) adopt(h *Handed) {
	slices.SortFunc(h.Flows, func(a, b Flow) int { return cmp.Compare(b.Idle, a.Idle) })
	l.loop.Post(func() {
		l.loop.clock()
		for i := range h.Flows {
			l.adoptFlow(&h.Flows[i])
		}
	})
}

// adoptFlow goes on with a flow.
func (l *udpListener) adoptFlow(s *Flow) {
	f := l.newFlow(path{s.Client, s.Local}, net.UDPAddrFromAddrPort(s.Client))
	f.pool, f.hops, f.replied = s.Pool, s.Hops, s.Replied
	if began := l.flows[f.path]; began != nil {
		l.end(began)
	}
	to, err := newFDSocket(s.Socket, nil)
	if err != nil {
		return
	}
	if !l.seat(f, l.loop.now-s.Idle) {
		_ = unix.Close(s.Socket)
		return
	}
	if s.Port > 0 {
		l.loop.udp.host.(*udpSockets).ports.adopt(binding{backend: s.Backend, port: s.Port})
	}
	if err := f.use(to, s.Port, s.Backend); err != nil {
		f.ended = true
		l.loop.udp.engine.flows.Release(&f.Seat)
		return
	}
	l.list(f)
	if !f.current(l.settings) {
		l.end(f)
	}
}

// adopt records a port that the previous run of the program took.
func (p *ports) adopt(b binding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(b)
}
