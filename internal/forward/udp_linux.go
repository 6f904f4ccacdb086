package forward

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
	"github.com/sluice-proxy/sluice/internal/kernel/epoll"
)

// batchSize is how many datagrams are received at once.
const batchSize = 32

// udpLoop is what the UDP listeners of a worker share.
type udpLoop struct {
	*worker
	udp     *udpPoller
	batch   *datagram.Batch
	wheel   *wheel[*flow]
	timer   epoll.Timer
	waiting bool                      // the timer is set
	busy    map[*udpListener]struct{} // those with flows
	budget  *budgets                  // for ICMP errors
}

func (l *udpLoop) init(w *worker, u *udpPoller) {
	l.worker, l.udp, l.batch = w, u, datagram.NewBatch(batchSize)
	l.wheel, l.busy, l.budget = newWheel[*flow](u.timeout), map[*udpListener]struct{}{}, newBudgets()
}

// left ends the flows to backends that have left all pools of a Balancer.
func (l *udpLoop) left(b *Balancer) {
	for listener := range l.busy {
		if listener.settings.balancer == b {
			listener.sweep()
		}
	}
}

// wait makes the loop look for idle flows after the next tick.
func (l *udpLoop) wait() {
	if !l.waiting && l.wheel.count > 0 {
		l.waiting = true
		l.Set(&l.timer, l.Now().Add(l.wheel.tick), l.sweep)
	}
}

// sweep ends flows that are idle, and those to backends that have left.
func (l *udpLoop) sweep() {
	l.waiting = false
	now := l.clock()
	l.wheel.expire(now, func(f *flow) {
		if used := time.Duration(f.used.Load()); now-used < l.udp.timeout {
			l.wheel.add(&f.due, used)
			return
		}
		f.listener.end(f)
	})
	for listener := range l.busy {
		listener.sweep()
	}
	l.wait()
}

// udpListener forwards the datagrams of a socket. It is used on the thread of its loop only.
type udpListener struct {
	loop     *udpLoop
	server   *udpServer
	fd       int
	port     uint16
	settings *settings
	flows    map[datagram.Path]*flow
	swept    *plan       // at the last sweep
	retry    epoll.Timer // of start
}

// Ready implements epoll.Handler.
func (l *udpListener) Ready(uint32) {
	b := l.loop.batch
	n, err := b.Receive(l.fd)
	if err != nil {
		return // EAGAIN: another process, which has the same socket, was faster
	}
	for i := range n {
		l.forward(b.Path(i), b.Data(i))
	}
}

// forward sends a datagram of a client to the backend of its flow.
func (l *udpListener) forward(p datagram.Path, data []byte) {
	f := l.flows[p]
	if f != nil && !f.current(l.settings) {
		l.end(f)
		f = nil
	}
	if f == nil {
		if f = l.begin(p, len(data)); f == nil {
			return
		}
	}
	f.used.Store(int64(l.loop.clock()))
	f.send(data)
}

// begin opens a flow for a datagram. It returns nil if the datagram is refused.
func (l *udpListener) begin(p datagram.Path, length int) *flow {
	s := l.settings
	client := p.Client().Addr()
	admission := s.admission(client)
	hops := l.loop.engine.hops.of(source{UDP, p.Client()}).count
	switch {
	case hops >= maxHops:
		l.loop.engine.refuse(s.balancer, reasonLoop)
		return nil
	case admission.Refused:
		s.balancer.counts.refused.Add(1)
		return nil
	}
	f := &flow{listener: l, path: p, fd: -1, length: uint16(length), hops: hops}
	f.choice = choice{settings: s, client: client, pool: admission.Pool}
	f.owner, f.due.item = f, f
	evicted, ok := l.loop.udp.shares.take(client, &f.seat, int64(l.loop.clock()))
	if !ok {
		l.loop.engine.refuse(s.balancer, reasonFlows)
		return nil
	}
	if evicted != nil {
		evicted.owner.evict(l.loop)
	}
	s.balancer.counts.connections.Add(1)
	if !f.connect() {
		f.ended = true
		l.loop.udp.shares.release(&f.seat)
		return nil
	}
	s.balancer.counts.open.Add(1)
	l.flows[p] = f
	l.loop.busy[l] = struct{}{}
	l.loop.wheel.add(&f.due, l.loop.clock())
	l.loop.wait()
	return f
}

// end ends a flow.
func (l *udpListener) end(f *flow) {
	f.disconnect()
	l.loop.udp.shares.release(&f.seat)
	if f.due.next != nil {
		l.loop.wheel.remove(&f.due)
	}
	delete(l.flows, f.path)
	if len(l.flows) == 0 {
		delete(l.loop.busy, l)
	}
	f.settings.balancer.counts.open.Add(-1)
	f.ended = true
}

// sweep ends the flows to backends that have left all pools.
func (l *udpListener) sweep() {
	plan := l.settings.balancer.plan.Load()
	if plan == l.swept {
		return
	}
	l.swept = plan
	for _, f := range l.flows {
		if !f.current(l.settings) {
			l.end(f)
		}
	}
}

// reset implements member.
func (l *udpListener) reset() {
	if _, open := l.loop.members[l]; !open {
		return
	}
	delete(l.loop.members, l)
	l.loop.Stop(&l.retry)
	for _, f := range l.flows {
		l.end(f)
	}
	l.loop.Close(l.fd)
}

// refuse sends the client of a path an ICMP error about its last datagram.
func (l *udpListener) refuse(p *datagram.Path, length int) {
	raw := l.loop.udp.raw
	if raw == nil || !l.loop.budget.take(p.Client().Addr(), l.loop.Now()) || raw.Refuse(p, l.port, length) != nil {
		l.loop.engine.unreported.Add(1)
	}
}

// start adds the socket to the loop.
func (l *udpListener) start() {
	l.loop.members[l] = struct{}{}
	if err := l.loop.Add(l.fd, unix.EPOLLIN, l); err != nil {
		l.loop.engine.options.Log.Error("A UDP listener does not work yet; Sluice tries again.", "error", err)
		l.loop.Set(&l.retry, l.loop.Now().Add(acceptPause), l.start) // no memory
	}
}
