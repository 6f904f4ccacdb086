package forward

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
)

// flow is the datagrams between one address of a client and one address of this host. It has a
// socket of its own to the backend. It is used on the thread of its loop only, except for evict and
// what shares uses.
type flow struct {
	seat
	choice
	due      link[*flow]
	listener *udpListener
	path     datagram.Path
	fd       int    // -1: none
	port     uint16 // of the socket; 0: it is not one of ports
	length   uint16 // of the last datagram of the client
	hops     uint8  // of the client
	from     source // of the socket, for hops
	ended    bool
}

// evict implements evicter.
func (f *flow) evict(by any) {
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

// connect opens a socket to a backend. It tries others if there is no route to one. It counts
// why it returns false.
func (f *flow) connect() bool {
	u := f.listener.loop.udp
	for range u.attempts {
		to, ok := f.next()
		if !ok {
			f.refuse()
			return false
		}
		err := f.open(to)
		if err == nil {
			f.connected(to)
			return true
		}
		if reason := shortage(err); reason != "" {
			u.engine.refuse(f.settings.balancer, reason)
			return false
		}
		f.failed(to)
	}
	f.settings.balancer.counts.failures.Add(1)
	f.refuse()
	return false
}

// open opens a socket to a backend and adds it to the loop. If there are no more file descriptors, it
// takes the one of another flow, if the client may have that.
func (f *flow) open(to netip.AddrPort) error {
	loop := f.listener.loop
	err := f.dial(to)
	if errors.Is(err, unix.EMFILE) {
		evicted := loop.udp.shares.replace(f.client, int64(loop.clock()))
		if evicted == nil {
			return err
		}
		evicted.owner.evict(loop)
		loop.engine.refuse(f.settings.balancer, reasonFiles)
		err = f.dial(to)
	}
	if err != nil {
		return err
	}
	if err = loop.Add(f.fd, unix.EPOLLIN, f); err != nil {
		f.close(to)
		return err
	}
	f.beginHop(to)
	return nil
}

// beginHop records the socket to the backend.
func (f *flow) beginHop(backend netip.AddrPort) {
	at, _ := datagram.LocalAddr(f.fd) // without an address no client comes from it
	f.from = source{UDP, at}
	f.listener.loop.engine.hops.begin(f.from, backend, f.hops)
}

// dial opens a socket to a backend.
func (f *flow) dial(to netip.AddrPort) error {
	loop := f.listener.loop
	return loop.files.open(func() (err error) {
		f.fd, f.port, err = loop.udp.ports.dial(to)
		return err
	})
}

// close closes the socket to a backend.
func (f *flow) close(backend netip.AddrPort) {
	loop := f.listener.loop
	loop.engine.hops.end(f.from, backend)
	loop.Close(f.fd)
	f.fd = -1
	if f.port > 0 {
		loop.udp.ports.release(backend, f.port)
		f.port = 0
	}
}

// disconnect closes the socket to the backend, if there is one.
func (f *flow) disconnect() {
	if f.fd < 0 {
		return
	}
	f.close(f.backend)
	f.disconnected()
}

// send sends a datagram to the backend. A flow whose backend has refused all datagrams moves to
// the next backend first.
func (f *flow) send(data []byte) {
	f.length = uint16(len(data))
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
		err := unix.Send(f.fd, data, unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.ECONNREFUSED) {
			return // any other error loses the datagram, as a network may
		}
		f.onRefusal()
	}
}

// Ready implements epoll.Handler. It sends replies of the backend to the client.
func (f *flow) Ready(uint32) {
	b := f.listener.loop.batch
	n, err := b.Read(f.fd)
	if errors.Is(err, unix.ECONNREFUSED) {
		f.onRefusal()
		return
	}
	if err != nil {
		return
	}
	f.replied = true
	f.used.Store(int64(f.listener.loop.clock()))
	bytes := 0
	for i := range n {
		bytes += len(b.Data(i))
	}
	f.settings.balancer.counts.sent.Add(int64(bytes))
	for sent := 0; sent < n; sent++ { // past a datagram that cannot be sent
		done, err := b.Reply(f.listener.fd, sent, n, &f.path)
		if errors.Is(err, unix.EAGAIN) {
			return // the network is slower than the backend
		}
		sent += done
	}
}

// onRefusal handles that the backend has refused a datagram.
func (f *flow) onRefusal() {
	f.choice.onRefusal()
	f.refuse()
}

// refuse tells the client that its last datagram was refused.
func (f *flow) refuse() { f.listener.refuse(&f.path, int(f.length)) }
