package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/relay/datagram"
	"github.com/sluice-proxy/sluice/internal/relay/epoll"
)

// after implements eventLoop.
func (w *worker) after(d time.Duration, f func()) { w.Set(&epoll.Timer{}, time.Now().Add(d), f) }

// watch implements eventLoop.
func (w *worker) watch(s socket, ready func()) error {
	f := s.(*fdSocket)
	f.packets = w.packets
	return w.Add(f.fd, unix.EPOLLIN, readyFunc(ready))
}

// close implements eventLoop.
func (w *worker) close(s socket) { w.Close(s.(*fdSocket).fd) }

// readyFunc is a function as epoll.Handler.
type readyFunc func()

// Ready implements epoll.Handler.
func (f readyFunc) Ready(uint32) { f() }

// fdSocket is a socket in an epoll loop.
type fdSocket struct {
	fd      int
	at      netip.AddrPort
	packets *packets // of its loop
	found   int      // how many datagrams the last read found
}

// newFDSocket returns a socket with a file descriptor, and closes that if it fails.
func newFDSocket(fd int, err error) (socket, error) {
	if err != nil {
		return nil, err
	}
	at, err := datagram.LocalAddr(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &fdSocket{fd: fd, at: at}, nil
}

// local implements socket.
func (s *fdSocket) local() netip.AddrPort { return s.at }

// read implements socket. Room for a datagram costs time even if there is none, so there is twice as much as the last
// read needed.
func (s *fdSocket) read(b *batch) (int, error) {
	room := min(2*s.found+1, batchSize)
	n, err := s.packets.of(s.fd).ReadBatch(b.clear(room), unix.MSG_DONTWAIT)
	s.found = max(n, 0) // after an error it is less
	return n, err
}

// write implements socket.
func (s *fdSocket) write(b *batch, n int) {
	for sent := 0; sent < n; sent++ { // past a datagram that cannot be sent
		done, err := s.packets.of(s.fd).WriteBatch(b.messages[sent:n], unix.MSG_DONTWAIT)
		if is(err, syscall.EAGAIN) {
			return // the network is slower than the backend
		}
		sent += done
	}
}

// send implements socket.
func (s *fdSocket) send(data []byte) error { return unix.Send(s.fd, data, unix.MSG_DONTWAIT) }

// packets reads and writes batches of the sockets of a loop by package ipv4, in IPv6 as well. Package net does not
// know these sockets, as the loop gets their events.
type packets struct {
	*net.UDPConn // nil: package ipv4 asks for its type only
	raw          rawSocket
	conn         *ipv4.PacketConn
}

func newPackets() *packets {
	p := &packets{}
	p.conn = ipv4.NewPacketConn(p)
	return p
}

// of returns the connection for a socket, until the next call.
func (p *packets) of(fd int) *ipv4.PacketConn {
	p.raw.fd = uintptr(fd)
	return p.conn
}

// SyscallConn implements syscall.Conn.
func (p *packets) SyscallConn() (syscall.RawConn, error) { return &p.raw, nil }

// LocalAddr implements net.Conn. Errors have this address.
func (*packets) LocalAddr() net.Addr { return &net.UDPAddr{} }

// rawSocket is a syscall.RawConn that does not wait.
type rawSocket struct{ fd uintptr }

// Control implements syscall.RawConn.
func (r *rawSocket) Control(f func(fd uintptr)) error {
	f(r.fd)
	return nil
}

// Read implements syscall.RawConn.
func (r *rawSocket) Read(f func(fd uintptr) bool) error {
	f(r.fd)
	return nil
}

// Write implements syscall.RawConn.
func (r *rawSocket) Write(f func(fd uintptr) bool) error { return r.Read(f) }

// udpSockets is the udpHost of Linux.
type udpSockets struct {
	engine *Engine
	once   sync.Once // prepare

	mu      sync.Mutex
	raw     *datagram.Refuser // nil: the program is not allowed to send ICMP errors
	budgets *budgets          // for ICMP errors
}

// prepare opens the sockets for ICMP errors in the network namespace of the thread, if it can.
func (u *udpSockets) prepare() {
	raw, err := datagram.NewRefuser()
	if err != nil {
		u.engine.options.Log.Info("Clients get no ICMP error when a UDP backend refuses their datagrams",
			"reason", err.Error())
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.raw = raw
}

func (u *udpSockets) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.raw != nil {
		u.raw.Close()
		u.raw = nil
	}
}

// listen implements udpHost.
func (u *udpSockets) listen(s Spec) (socket, error) {
	fd := -1
	err := netns.Do(u.engine.options.NetNS, func() (err error) {
		u.once.Do(u.prepare)
		fd, err = socketUDP(s)
		return err
	})
	return newFDSocket(fd, err)
}

func socketUDP(s Spec) (int, error) {
	if s.Inherited == nil {
		return datagram.Listen(s.Addr)
	}
	return inherit(s.Inherited, func(fd int) error { return datagram.Prepare(fd, s.Addr.Addr()) })
}

// dial implements udpHost. It runs on the thread of a loop, in the network namespace of the sockets.
func (*udpSockets) dial(to netip.AddrPort) (socket, error) {
	return newFDSocket(datagram.Dial(to))
}

// refuse implements udpHost. It sends an ICMP error.
func (u *udpSockets) refuse(client, to netip.AddrPort, length int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.raw != nil && u.budgets.take(client.Addr(), time.Now()) && u.raw.Refuse(client, to, length) == nil
}
