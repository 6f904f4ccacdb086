package forward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

// maxPending is how many bytes that were read but not written are handed over. Connections with more are
// reset.
const maxPending = 64 << 20

// handOver implements handover.
func (p *poller) handOver(ctx context.Context, open map[server]*Listener) (map[*Listener]*Handed, error) {
	// What a worker accepts for another one is posted there before the second step.
	if err := p.each(ctx, func(w *worker) { w.stopAccepting() }); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	all, room := map[*Listener]*Handed{}, maxPending
	ended := false
	err := p.each(ctx, func(w *worker) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return // too late: its connections end with the Engine
		}
		for m := range w.members {
			l := open[m.server]
			if all[l] == nil {
				all[l] = &Handed{Socket: -1}
			}
			m.handOver(all[l], &room)
		}
		for m := range w.udp.listeners {
			l := open[m]
			if all[l] == nil {
				all[l] = &Handed{Socket: -1}
			}
			m.handOver(w, all[l])
		}
	})
	mu.Lock()
	defer mu.Unlock()
	ended = true
	if err == nil {
		return all, nil
	}
	for _, h := range all { // nobody would adopt them
		h.Discard()
	}
	return nil, err
}

// each calls a function on the thread of each worker, and waits for all of them.
func (p *poller) each(ctx context.Context, do func(w *worker)) error {
	done := make(chan struct{}, len(p.workers))
	for _, w := range p.workers {
		w.Post(func() {
			do(w)
			done <- struct{}{}
		})
	}
	for range p.workers {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stopAccepting leaves new clients in the queues of the listening sockets.
func (w *worker) stopAccepting() {
	for m := range w.members {
		m.stop()
	}
}

// handOver adds the sockets and takes them out of the loop. It lowers how many bytes there is room for.
func (a *acceptor) handOver(to *Handed, room *int) {
	if !a.retired {
		to.Socket = a.server.fd
		a.server.handed.Store(true)
	}
	for !a.conns.Empty() {
		c := a.conns.Next.Item
		size := len(c.up.pending) + len(c.down.pending)
		if c.state == resetting || size > *room {
			c.abort()
			continue
		}
		*room -= size
		to.Conns = append(to.Conns, c.handOver())
	}
}

// reset closes a file descriptor, and resets its connection if it is that of one.
func reset(fd int) {
	stream.SetReset(fd)
	stream.Close(fd)
}

// handOver removes a connection without closing its sockets.
func (c *conn) handOver() Conn {
	w := c.owner.worker
	s := Conn{Client: c.client.fd, Remote: -1, Peer: c.peer, Pool: c.pool, Hops: c.hops}
	if c.state == connecting {
		c.closeRemote()
	} else {
		s.Remote, s.Backend, s.Up, s.Down = c.remote.fd, c.backend, c.up.handOver(), c.down.handOver()
		s.Ends = c.timer.At()
		w.engine.hops.end(c.from, c.backend)
		_ = w.Remove(c.remote.fd) // it is in the loop
		c.remote.fd = -1
		c.settings.balancer.ended(c.backend)
	}
	_ = w.Remove(c.client.fd)
	c.forget()
	return s
}

// handOver returns what the direction has read but not written.
func (d *direction) handOver() Way {
	s := Way{Done: d.done, Pending: d.pending}
	d.release()
	if d.held > 0 {
		s.Held, s.Pipe = d.held, [2]int{d.pipe.Read, d.pipe.Write}
		d.from.conn.owner.worker.tcp.pipeCount--
		d.held, d.piped = 0, false
	}
	return s
}

// adopt implements adopter.
func (s *tcpServer) adopt(h *Handed) {
	for i := range h.Conns {
		a := s.loops[i%len(s.loops)]
		a.worker.tcp.open.Add(1)
		a.worker.Post(func() { a.adopt(&h.Conns[i]) })
	}
}

// retired implements handover.
func (p *poller) retired(spec Spec, h *Handed) adopter {
	if h.Socket >= 0 {
		stream.Close(h.Socket)
	}
	for i := range h.Flows {
		stream.Close(h.Flows[i].Socket)
	}
	s := &tcpServer{at: spec.Addr, fd: -1}
	s.set(&settings{balancer: spec.Balancer, admit: spec.Admit})
	for _, w := range p.workers {
		s.loops = append(s.loops, &acceptor{worker: w, server: s, retired: true})
	}
	return s
}

// adopt goes on with a connection.
func (a *acceptor) adopt(s *Conn) {
	w := a.worker
	c := &conn{owner: a, settings: a.server.settings.Load(), pool: s.Pool, peer: s.Peer, hops: s.Hops}
	c.client.conn, c.remote.conn = c, c
	c.client.fd, c.remote.fd = s.Client, s.Remote
	c.seat.Owner = c
	w.engine.connections.Adopt(s.Peer.Addr(), &c.seat, int64(w.clock()))
	b := c.settings.balancer
	b.counts.open.Add(1)
	w.members[a] = struct{}{}
	if s.Remote < 0 {
		c.start()
		return
	}
	c.list()
	c.backend, c.state = s.Backend, open
	c.beginHop()
	b.reached(c.peer.Addr(), c.backend)
	c.up.adopt(&s.Up)
	c.down.adopt(&s.Down)
	c.join()
	if c.owner.closed || !b.has(c.backend) || !s.Ends.IsZero() {
		c.drainUntil(s.Ends)
	}
	// The loop reports at once what there is to read, and that there is room to write.
	if errors.Join(w.Add(c.client.fd, connEvents, &c.client), w.Add(c.remote.fd, connEvents, &c.remote)) != nil {
		c.refuse(reasonMemory)
	}
}

// drainUntil makes the connection end at a time, as drain does.
func (c *conn) drainUntil(end time.Time) {
	c.drain()
	if latest := c.timer.At(); !end.IsZero() && end.Before(latest) {
		c.owner.worker.Reset(&c.timer, end)
	}
}

// adopt goes on with a direction.
func (d *direction) adopt(s *Way) {
	d.done = s.Done
	d.keep(s.Pending)
	if s.Held > 0 {
		d.held, d.pipe, d.piped = s.Held, stream.Pipe{Read: s.Pipe[0], Write: s.Pipe[1]}, true
		d.from.conn.owner.worker.tcp.pipeCount++
	}
	d.blocked = len(d.pending) > 0 || d.held > 0
}
