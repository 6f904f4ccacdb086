package relay

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/list"
	"github.com/sluice-proxy/sluice/internal/relay/epoll"
	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// conn is a connection of a client and the one to its backend. It is used on the thread of its acceptor's worker only.
// Between events it has no buffer and no pipe, unless one side is slower than the other.
type conn struct {
	seat     fair.Seat
	owner    *acceptor
	settings *settings
	pool     int
	state    state
	client   side
	remote   side
	up, down direction // to the backend, to the client
	peer     netip.AddrPort
	backend  netip.AddrPort
	tried    []netip.AddrPort
	attempts int
	hops     uint8               // of the client
	from     source              // of the remote side, for hops
	timer    epoll.Timer         // of the attempt to connect, or of the end of draining
	gone     *side               // in state resetting
	until    time.Time           // when the other side is reset at the latest
	evicted  bool                // before it was started
	all      list.Element[*conn] // in acceptor.conns
	same     list.Element[*conn] // in tcpLoop.backends
}

type state uint8

const (
	connecting state = iota // also between two attempts
	open
	resetting // the peer of one side, conn.gone, has reset the connection
	closed
)

// side is a socket of a conn.
type side struct {
	conn *conn
	fd   int
}

// connEvents are the events of both sockets, edge-triggered: they are set once.
const connEvents = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// resetDelay is how long bytes that were received before a reset may take to reach the other peer.
const resetDelay = time.Second

// start connects the client to a backend. Bytes that the client sends meanwhile stay in the kernel.
func (c *conn) start() {
	a := c.owner
	c.list()
	if err := a.worker.Add(c.client.fd, connEvents, &c.client); err != nil {
		c.refuse(reasonMemory)
		return
	}
	if c.evicted {
		c.abort()
		return
	}
	if a.closed {
		c.drain() // it was closed while the connection was passed to this worker
	}
	c.connect()
}

// Evict implements fair.Owner. The connection may not have been started yet, as that is posted too.
func (c *conn) Evict(by any) {
	w := c.owner.worker
	if by != w {
		w.Post(c.makeRoom)
		return
	}
	c.makeRoom()
}

// makeRoom ends the connection to make room for one of another client.
func (c *conn) makeRoom() {
	switch {
	case c.state == closed:
		return // it has ended meanwhile
	case c.all.Item == nil:
		c.evicted = true
		c.owner.worker.engine.refuse(reasonConnections)
	default:
		c.refuse(reasonConnections)
	}
}

// list adds the connection to the list of its acceptor.
func (c *conn) list() {
	c.all.Item, c.same.Item = c, c
	counts := &c.settings.balancer.counts
	c.up = direction{from: &c.client, to: &c.remote, count: &counts.received}
	c.down = direction{from: &c.remote, to: &c.client, count: &counts.sent}
	c.owner.conns.Push(&c.all)
	c.owner.worker.members[c.owner] = struct{}{} // an acceptor that was closed meanwhile was forgotten
}

// connect begins the next attempt to reach a backend.
func (c *conn) connect() {
	w, b := c.owner.worker, c.settings.balancer
	limits := w.engine.options.Attempts
	var reason string
	for c.attempts < len(limits) {
		to, ok := b.pick(c.peer.Addr(), c.pool, c.tried)
		if !ok || reason == reasonPorts && slices.Contains(c.tried, to) { // an immediate second attempt finds no port either
			break
		}
		if c.attempts++; c.attempts > 1 {
			b.counts.retries.Add(1)
		}
		fd, err := w.waiting.dial(to, w.clock())
		if err == nil {
			c.backend, c.remote.fd = to, fd
			at, _ := socket.Addr(fd) // without an address no client comes from it
			c.from = source{TCP, at}
			w.engine.hops.begin(c.from, to, c.hops)
			b.reached(to)
			w.Set(&c.timer, w.Now().Add(limits[c.attempts-1]), c.failed)
			if err := w.Add(fd, connEvents, &c.remote); err != nil {
				c.refuse(reasonMemory)
			}
			return
		}
		if reason = shortage(err); reason == reasonFiles || reason == reasonMemory {
			c.refuse(reason)
			return
		}
		c.tried = append(c.tried, to)
		if reason == "" {
			b.failed(c.peer.Addr(), to)
		}
	}
	if reason != "" {
		c.refuse(reason)
		return
	}
	b.counts.failures.Add(1)
	c.abort()
}

// refuse resets the client because this host has run out of a resource.
func (c *conn) refuse(reason string) {
	c.owner.worker.engine.refuse(reason)
	c.abort()
}

// failed ends an attempt to reach a backend, which was refused or not answered in time, and begins the next one.
func (c *conn) failed() {
	b := c.settings.balancer
	b.failed(c.peer.Addr(), c.backend)
	c.tried = append(c.tried, c.backend)
	c.closeRemote()
	c.connect()
}

// closeRemote closes the socket to the backend.
func (c *conn) closeRemote() {
	if c.remote.fd < 0 {
		return
	}
	w := c.owner.worker
	w.Stop(&c.timer)
	w.engine.hops.end(c.from, c.backend)
	w.Close(c.remote.fd)
	c.remote.fd = -1
	c.settings.balancer.ended(c.backend)
}

// freePort closes the socket to the backend, and then records its port if the connection is in TIME_WAIT: another
// worker may connect from a recorded port at once.
func (c *conn) freePort() {
	w := c.owner.worker
	reusable := socket.Reusable(c.remote.fd)
	c.closeRemote()
	if reusable {
		w.waiting.add(c.backend, c.from.at, w.clock())
	}
}

// Ready implements epoll.Handler.
func (s *side) Ready(events uint32) {
	c := s.conn
	switch c.state {
	case connecting:
		c.whileConnecting(s, events)
		return
	case resetting:
		c.whileResetting(s, events)
		return
	case open, closed:
	}
	c.seat.Used.Store(int64(c.owner.worker.clock()))
	in, out := c.directions(s)
	const (
		readable = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
		writable = unix.EPOLLOUT | unix.EPOLLHUP | unix.EPOLLERR
	)
	if events&unix.EPOLLERR != 0 {
		c.reset(s)
		return
	}
	if events&readable != 0 {
		in.received(events)
		in.pump()
	}
	if events&writable != 0 && out.blocked && c.state == open {
		out.blocked = false
		out.pump()
	}
}

// directions returns the direction from a side, and the one to it.
func (c *conn) directions(s *side) (from, to *direction) {
	if s == &c.remote {
		return &c.down, &c.up
	}
	return &c.up, &c.down
}

// whileConnecting handles events before there is a backend.
func (c *conn) whileConnecting(s *side, events uint32) {
	if s == &c.client {
		c.up.received(events)
		if events&unix.EPOLLERR != 0 {
			c.abort()
		}
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		if shortage(socket.Error(c.remote.fd)) == reasonPorts {
			c.refuse(reasonPorts)
			return
		}
		c.failed()
		return
	}
	if events&unix.EPOLLOUT != 0 {
		c.connected(events)
	}
}

// connected starts to forward.
func (c *conn) connected(events uint32) {
	w, b := c.owner.worker, c.settings.balancer
	w.Stop(&c.timer)
	c.state, c.tried = open, nil
	c.join()
	if c.owner.closed || !b.has(c.backend) {
		c.drain()
	}
	if b.plan.Load().ProxyHeader {
		to, err := socket.Destination(c.client.fd)
		if err != nil {
			c.abort()
			return
		}
		c.up.pending = proxyHeader(c.peer, to)
		c.up.count.Add(-int64(len(c.up.pending))) // it is not from the client
	}
	c.up.pump()
	if c.state == open && events&^unix.EPOLLOUT != 0 {
		c.down.received(events)
		c.down.pump()
	}
}

// join adds the connection to the list of its backend.
func (c *conn) join() {
	t, key := &c.owner.worker.tcp, remote{c.settings.balancer, c.backend}
	conns := t.backends[key]
	if conns == nil {
		conns = &list.Element[*conn]{}
		t.backends[key] = conns
	}
	conns.Push(&c.same)
}

// drain makes the connection end after a time, unless its backend returns.
func (c *conn) drain() {
	if c.state != open {
		return // connected will do it
	}
	w := c.owner.worker
	w.Set(&c.timer, w.Now().Add(w.engine.options.Drain), func() {
		if c.owner.closed || !c.settings.balancer.has(c.backend) {
			c.abort()
		}
	})
}

// abort resets both sides.
func (c *conn) abort() {
	if c.state == closed {
		return
	}
	socket.SetReset(c.client.fd)
	if c.remote.fd >= 0 {
		socket.SetReset(c.remote.fd)
	}
	c.end()
}

// end closes both sides, and removes the connection from the lists of the loop.
func (c *conn) end() {
	c.closeRemote()
	w, b := c.owner.worker, c.settings.balancer
	w.Close(c.client.fd)
	w.Stop(&c.timer)
	c.up.discard()
	c.down.discard()
	c.state = closed
	c.all.Remove()
	if c.same.Next != nil {
		c.same.Remove()
		if key := (remote{b, c.backend}); w.tcp.backends[key].Empty() {
			delete(w.tcp.backends, key)
		}
	}
	c.owner.ended()
	w.tcp.open.Add(-1)
	w.engine.connections.Release(&c.seat)
	b.counts.open.Add(-1)
}

// reset handles that the peer of a side has reset the connection. The bytes that it sent before still reach the other
// peer, which gets the reset after them, or after resetDelay.
func (c *conn) reset(by *side) {
	if c.state != open {
		c.abort()
		return
	}
	w := c.owner.worker
	c.state, c.gone, c.until = resetting, by, w.Now().Add(resetDelay)
	w.Set(&c.timer, c.until, c.abort)
	from, _ := c.directions(by)
	from.received(unix.EPOLLERR)
	if from.done {
		c.passReset()
		return
	}
	from.pump()
}

// whileResetting handles events of the side that is still there.
func (c *conn) whileResetting(s *side, events uint32) {
	from, _ := c.directions(c.gone)
	switch {
	case s == c.gone:
	case events&unix.EPOLLERR != 0:
		c.abort()
	case events&unix.EPOLLOUT != 0 && from.blocked:
		from.blocked = false
		from.pump()
	}
}

// passReset resets the other side once its peer has received everything. The kernel reports no event
// for that, so it looks again after as long as it has waited.
func (c *conn) passReset() {
	w := c.owner.worker
	from, _ := c.directions(c.gone)
	from.done = true
	if socket.Unsent(from.to.fd) == 0 || !w.Now().Before(c.until) {
		c.abort()
		return
	}
	began := c.until.Add(-resetDelay)
	pause := max(w.Now().Sub(began), time.Millisecond)
	at := w.Now().Add(pause)
	if at.After(c.until) {
		at = c.until
	}
	w.Set(&c.timer, at, c.passReset)
}
