package relay

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/relay/epoll"
	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

func (w *worker) after(d time.Duration, f func()) { w.Set(&epoll.Timer{}, time.Now().Add(d), f) }

func (w *worker) watch(s udpSocket, ready func()) error {
	return w.Add(s.(*fdSocket).fd, unix.EPOLLIN, readyFunc(ready))
}

func (w *worker) close(s udpSocket) { w.Close(s.(*fdSocket).fd) }

// readyFunc is a function as epoll.Handler.
type readyFunc func()

// Ready implements epoll.Handler.
func (f readyFunc) Ready(uint32) { f() }

// fdSocket is a udpSocket in an epoll loop.
type fdSocket struct {
	fd int
	at netip.AddrPort
}

// newFDSocket returns a socket with a file descriptor, and closes that if it fails.
func newFDSocket(fd int, err error) (udpSocket, error) {
	if err != nil {
		return nil, err
	}
	at, err := socket.Addr(fd)
	if err != nil {
		socket.Close(fd)
		return nil, err
	}
	return &fdSocket{fd: fd, at: at}, nil
}

func (s *fdSocket) local() netip.AddrPort { return s.at }

func (s *fdSocket) receive(b []byte) (int, netip.AddrPort, error) { return socket.Receive(s.fd, b) }

func (s *fdSocket) send(b []byte) error {
	if _, e := socket.Write(s.fd, b); e != 0 {
		return e
	}
	return nil
}

func (s *fdSocket) sendTo(b []byte, to netip.AddrPort) { _ = socket.SendTo(s.fd, b, to) }

// udpSockets is the udpHost of Linux.
type udpSockets struct {
	engine *Engine
	once   sync.Once // prepare

	mu      sync.Mutex
	raw     *socket.Refuser // nil: the program is not allowed to send ICMP errors
	budgets *budgets        // for ICMP errors
}

// prepare opens the sockets for ICMP errors in the network namespace of the thread, if it can.
func (u *udpSockets) prepare() {
	raw, err := socket.NewRefuser()
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

func (u *udpSockets) listen(s Spec) (udpSocket, error) {
	fd := -1
	err := netns.Do(u.engine.options.NetNS, func() (err error) {
		u.once.Do(u.prepare)
		if s.Inherited != nil {
			fd, err = inherit(s.Inherited, socket.AdoptUDP)
			return err
		}
		fd, err = socket.ListenUDP(s.Addr)
		return err
	})
	return newFDSocket(fd, err)
}

// dial implements udpHost. It runs on the thread of a loop, in the network namespace of the sockets.
func (*udpSockets) dial(to netip.AddrPort) (udpSocket, error) {
	return newFDSocket(socket.DialUDP(to))
}

// refuse implements udpHost. It sends an ICMP error.
func (u *udpSockets) refuse(client, to netip.AddrPort, length int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.raw != nil && u.budgets.take(client.Addr(), time.Now()) && u.raw.Refuse(client, to, length) == nil
}

// Limits of ICMP errors, in all and for each client, whose address may be a forged one: then its owner gets the
// errors. The kernel's limits (icmp_msgs_per_sec, icmp_ratelimit) do not apply to raw sockets.
const (
	refusalsPerSecond, refusalsAtOnce             = 1000, 50
	clientRefusalsPerSecond, clientRefusalsAtOnce = 10, 20
)

// budgets limits how many ICMP errors are sent. Clients with the same hash share a budget, so that memory is bounded.
type budgets struct {
	all     *rate.Limiter
	clients [1024]*rate.Limiter
	seed    maphash.Seed
}

func newBudgets() *budgets {
	b := &budgets{all: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce), seed: maphash.MakeSeed()}
	for i := range b.clients {
		b.clients[i] = rate.NewLimiter(clientRefusalsPerSecond, clientRefusalsAtOnce)
	}
	return b
}

// take reports whether one more may be sent to a client.
func (b *budgets) take(client netip.Addr, now time.Time) bool {
	slot := maphash.Comparable(b.seed, fair.Network(client)) % uint64(len(b.clients))
	return b.clients[slot].AllowN(now, 1) && b.all.AllowN(now, 1)
}
