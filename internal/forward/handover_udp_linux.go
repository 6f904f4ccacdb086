package forward

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
)

// handOver implements member.
func (l *udpListener) handOver(to *Handed, _ *int) {
	l.loop.Stop(&l.retry)
	_ = l.loop.Remove(l.fd) // it may not be in the loop yet
	delete(l.loop.members, l)
	to.Socket = l.fd
	for _, f := range l.flows {
		if !f.refused && f.current(l.settings) { // otherwise the next datagram begins another one
			to.Flows = append(to.Flows, f.handOver())
		}
		l.end(f)
	}
}

// handOver takes the socket to the backend out of the flow.
func (f *flow) handOver() Flow {
	loop := f.listener.loop
	s := Flow{
		Socket: f.fd, Client: f.path.Client(), Zone: f.path.Zone(), Local: f.path.Local(), Backend: f.backend, Pool: f.pool, Hops: f.hops,
		Idle: loop.clock() - time.Duration(f.used.Load()), Port: f.port, Replied: f.replied,
	}
	loop.engine.hops.end(f.from, f.backend)
	_ = loop.Remove(f.fd) // it is in the loop
	if f.port > 0 {
		loop.udp.ports.release(f.backend, f.port)
		f.port = 0
	}
	f.fd = -1
	f.disconnected()
	return s
}

// adopt implements adopter. The flow that is idle for longest is adopted first, and so is the first to end for another one.
func (s *udpServer) adopt(h *Handed) {
	slices.SortFunc(h.Flows, func(a, b Flow) int { return cmp.Compare(b.Idle, a.Idle) })
	s.listener.loop.Post(func() {
		for i := range h.Flows {
			s.listener.adopt(&h.Flows[i])
		}
	})
}

// adopt goes on with a flow.
func (l *udpListener) adopt(s *Flow) {
	u, used := l.loop.udp, l.loop.clock()-s.Idle
	f := &flow{listener: l, path: datagram.PathOf(s.Client, s.Zone, s.Local), fd: s.Socket, port: s.Port, hops: s.Hops}
	f.choice = choice{settings: l.settings, client: s.Client.Addr(), pool: s.Pool, replied: s.Replied}
	f.owner, f.due.item = f, f
	if began := l.flows[f.path]; began != nil {
		l.end(began)
	}
	evicted, ok := u.shares.take(f.client, &f.seat, int64(used))
	if !ok {
		u.engine.refuse(l.settings.balancer, reasonFlows)
		_ = unix.Close(f.fd)
		return
	}
	if evicted != nil {
		evicted.owner.evict(l.loop)
	}
	if f.port > 0 {
		_ = datagram.Share(f.fd) // an earlier version has shared it with other users; without, no other flow gets the port
		u.ports.adopt(binding{backend: s.Backend, port: f.port})
	}
	f.connected(s.Backend)
	f.beginHop(s.Backend)
	l.settings.balancer.counts.open.Add(1)
	l.flows[f.path] = f
	l.loop.busy[l] = struct{}{}
	l.loop.wheel.add(&f.due, used)
	l.loop.wait()
	if l.loop.Add(f.fd, unix.EPOLLIN, f) != nil || !f.current(l.settings) {
		l.end(f)
	}
}

// adopt records a port that the previous run of the program took.
func (p *ports) adopt(b binding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(b)
}
