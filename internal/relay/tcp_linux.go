package relay

import (
	"errors"
	"net/netip"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/list"
	"github.com/sluice-proxy/sluice/internal/relay/epoll"
	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// tcpServer is a server: a listening socket of TCP, which all workers have in their loops.
type tcpServer struct {
	at       netip.AddrPort
	fd       int
	settings atomic.Pointer[settings]
	loops    []*acceptor
	users    atomic.Int32 // how many of these have not left
}

func (p *poller) listenTCP(spec Spec) (server, error) {
	s := &tcpServer{}
	s.set(spec.settings())
	err := netns.Do(p.engine.options.NetNS, func() (err error) {
		if spec.Inherited != nil {
			s.fd, err = inherit(spec.Inherited, socket.AdoptTCP)
			return err
		}
		s.fd, err = socket.ListenTCP(spec.Addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.at, err = socket.Addr(s.fd); err != nil {
		socket.Close(s.fd)
		return nil, err
	}
	s.users.Store(int32(len(p.workers)))
	for _, w := range p.workers {
		s.loops = append(s.loops, &acceptor{worker: w, server: s})
	}
	for _, a := range s.loops { // complete from now on: other threads read it
		a.worker.Post(a.start)
	}
	return s, nil
}

func (s *tcpServer) addr() netip.AddrPort { return s.at }

func (s *tcpServer) set(to *settings) { s.settings.Store(to) }

func (s *tcpServer) close() {
	for _, a := range s.loops {
		a.worker.Post(a.close)
	}
}

// release is called when a loop does not use the socket any more.
func (s *tcpServer) release() {
	if s.users.Add(-1) == 0 {
		socket.Close(s.fd)
	}
}

// acceptor accepts connections of a tcpServer on the thread of a worker, which alone uses it.
type acceptor struct {
	worker *worker
	server *tcpServer
	conns  list.Element[*conn]
	added  bool // the socket is in the loop
	closed bool // the socket is not used any more, and connections drain
	pause  epoll.Timer
}

// maxAccept is how many connections are accepted before other work continues.
const maxAccept = 16

// start adds the socket to the loop.
func (a *acceptor) start() {
	if a.closed {
		return
	}
	a.worker.members[a] = struct{}{}
	if err := a.worker.Add(a.server.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, a); err != nil {
		a.worker.Set(&a.pause, a.worker.Now().Add(acceptPause), a.start) // no memory
		return
	}
	a.added = true
}

// stop removes the socket from the loop.
func (a *acceptor) stop() {
	a.worker.Stop(&a.pause)
	if a.added {
		a.added = false
		_ = a.worker.Remove(a.server.fd) // it is in the loop
	}
}

// close stops to accept. Connections drain.
func (a *acceptor) close() {
	if a.closed {
		return
	}
	a.closed = true
	a.stop()
	a.server.release()
	for e := a.conns.Next; e != nil && e != &a.conns; e = e.Next {
		e.Item.drain()
	}
	a.ended()
}

// ended makes the worker forget an acceptor that was closed when its last connection has ended.
func (a *acceptor) ended() {
	if a.closed && a.conns.Empty() {
		delete(a.worker.members, a)
	}
}

// reset closes all sockets at once.
func (a *acceptor) reset() {
	a.close()
	for !a.conns.Empty() {
		a.conns.Next.Item.abort()
	}
}

// Ready implements epoll.Handler: clients wait to be accepted.
func (a *acceptor) Ready(uint32) {
	for range maxAccept {
		fd, client, err := socket.Accept(a.server.fd)
		if err == nil {
			a.accepted(fd, client)
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if reason := shortage(err); reason != "" {
			a.worker.engine.refuse(reason)
			a.stop()
			a.worker.Set(&a.pause, a.worker.Now().Add(acceptPause), a.start)
			return
		}
		// an error of that connection, such as ECONNABORTED
	}
}

// hopsOf returns through how many sockets a client has come. A client of this host may have the source of a socket to
// another address.
func (a *acceptor) hopsOf(fd int, client netip.AddrPort) uint8 {
	h := a.worker.engine.hops.of(source{TCP, client})
	if h.count == 0 {
		return 0
	}
	if to, err := socket.Destination(fd); err != nil || to != h.to {
		return 0
	}
	return h.count
}

// accepted starts a connection, on the worker that has few.
func (a *acceptor) accepted(fd int, client netip.AddrPort) {
	e, s := a.worker.engine, a.server.settings.Load()
	admission := s.admission(client.Addr())
	hops := a.hopsOf(fd, client)
	switch {
	case hops >= maxHops:
		e.refuse(reasonLoop)
		reset(fd)
		return
	case admission.Refused && !admission.except(fd):
		reset(fd)
		return
	}
	to := a.least()
	c := &conn{owner: to, settings: s, pool: admission.Pool, peer: client, hops: hops}
	c.client.conn, c.remote.conn = c, c
	c.client.fd, c.remote.fd = fd, -1
	c.seat.Owner = c
	evicted, ok := e.connections.Take(client.Addr(), &c.seat, int64(a.worker.clock()))
	if evicted != nil {
		evicted.Owner.Evict(a.worker)
	}
	if !ok {
		e.refuse(reasonConnections)
		reset(fd)
		return
	}
	s.balancer.counts.connections.Add(1)
	s.balancer.counts.open.Add(1)
	to.worker.tcp.open.Add(1)
	if to == a {
		c.start()
		return
	}
	to.worker.Post(c.start)
}

// except reports whether a refused connection is admitted because of its destination.
func (a Admission) except(fd int) bool {
	if a.Unless == nil {
		return false
	}
	to, err := socket.Destination(fd)
	return err == nil && a.Unless(to)
}

// least returns the acceptor on whose worker a connection should be: this one, unless another one has
// considerably fewer.
func (a *acceptor) least() *acceptor {
	best, open := a, a.worker.tcp.open.Load()
	const some, part = 4, 8
	limit := open - some - open/part
	for _, other := range a.server.loops {
		if n := other.worker.tcp.open.Load(); n < limit {
			best, limit = other, n
		}
	}
	return best
}

// tcpLoop is the state that the TCP connections of a worker share.
type tcpLoop struct {
	open                 atomic.Int64 // connections
	buffer               []byte
	pipes                []socket.Pipe // that are not in use
	pipeCount, pipeLimit int           // of all pipes
	kept                 int           // bytes that directions have read, but not written
	backends             map[remote]*list.Element[*conn]
}

// remote is a backend of a Balancer.
type remote struct {
	balancer *Balancer
	addr     netip.AddrPort
}

// bufferSize is how much is read at once. A direction that fills the buffer is moved to a pipe.
const bufferSize = 16 << 10

// maxKept is how many bytes a worker keeps of connections whose peers do not read before it reads only smallRead at
// once: there may be tens of thousands of these.
const (
	maxKept   = 1 << 20
	smallRead = 512
)

func (t *tcpLoop) init() {
	t.buffer, t.backends = make([]byte, bufferSize), map[remote]*list.Element[*conn]{}
	const part, ends = 8, 2 // a part of the file descriptors, see Options.withDefaults
	t.pipeLimit = min(maxPipes, fileLimit()/part/ends/runtime.GOMAXPROCS(0))
}

// end closes the unused pipes.
func (t *tcpLoop) end() {
	for _, p := range t.pipes {
		p.Close()
	}
	t.pipes = nil
}

// left makes connections to backends that have left drain.
func (t *tcpLoop) left(b *Balancer, gone []netip.AddrPort) {
	for _, addr := range gone {
		conns := t.backends[remote{b, addr}]
		if conns == nil {
			continue
		}
		for e := conns.Next; e != conns; e = e.Next {
			e.Item.drain()
		}
	}
}
