package relay

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// waiting has the local ports whose connections to a backend are in TIME_WAIT, because the client closed first. The
// kernel chooses none of them for another connection to this backend, but accepts a connection that binds one.
// docs/decisions/0042-ports-in-time-wait-are-reused.md says why this is safe. It is safe for concurrent use.
type waiting struct {
	mu      sync.Mutex
	ports   map[netip.AddrPort]waitingPorts // by backend; nil: none yet
	expired time.Duration                   // the last call of expire
}

// waitingPorts are the ports of a local address, oldest first. They are bound with this address, because a port of
// another address may be in use.
type waitingPorts struct {
	local netip.Addr
	list  []waitingPort
}

// waitingPort is a local port and when its connection ended, since the start of the Engine.
type waitingPort struct {
	number uint16
	ended  time.Duration
}

// timeWait is how long a connection stays in TIME_WAIT (TCP_TIMEWAIT_LEN in Linux).
const timeWait = time.Minute

// manyWaiting is how many ports to a backend may wait before the oldest is reused. It leaves more than two thirds of
// the default range to open connections, other programs, and the next Engine, which does not know these ports. It is
// less than half of the range because the kernel tries the even ports first: when all are in use, connect(2) takes
// milliseconds.
const manyWaiting = 8192

// add records the local address and port of a connection that has ended. Ports of another local address are
// forgotten: the route to the backend has changed.
func (w *waiting) add(backend, local netip.AddrPort, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ports == nil {
		w.ports = map[netip.AddrPort]waitingPorts{}
	}
	if now-w.expired > timeWait {
		w.expire(now)
	}
	p := w.ports[backend]
	if p.local != local.Addr() {
		p = waitingPorts{local: local.Addr()}
	}
	p.list = append(p.list, waitingPort{local.Port(), now})
	w.ports[backend] = p
}

// expire deletes the ports whose TIME_WAIT has ended. The caller holds the lock.
func (w *waiting) expire(now time.Duration) {
	w.expired = now
	for backend, p := range w.ports {
		if p.list = unexpired(p.list, now); len(p.list) == 0 {
			delete(w.ports, backend)
			continue
		}
		w.ports[backend] = p
	}
}

// unexpired returns the ports that are still in TIME_WAIT.
func unexpired(list []waitingPort, now time.Duration) []waitingPort {
	for len(list) > 0 && now-list[0].ended >= timeWait {
		list = list[1:]
	}
	return list
}

// take removes and returns the oldest port to a backend, with its address. It returns false if no more than keep ports
// wait.
func (w *waiting) take(backend netip.AddrPort, keep int, now time.Duration) (netip.AddrPort, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.ports[backend]
	p.list = unexpired(p.list, now)
	if len(p.list) <= keep {
		return netip.AddrPort{}, false
	}
	oldest := netip.AddrPortFrom(p.local, p.list[0].number)
	p.list = p.list[1:]
	w.ports[backend] = p
	return oldest, true
}

// dial begins to connect to a backend. The kernel chooses the port, unless many ports wait or no other is free.
func (w *waiting) dial(to netip.AddrPort, now time.Duration) (int, error) {
	if fd, err := w.reuse(to, manyWaiting, now); err == nil {
		return fd, nil
	}
	fd, err := socket.Connect(to)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return w.reuse(to, 0, now)
	}
	return fd, err
}

// reuse begins to connect to a backend from the oldest port, if more than keep ports wait. It returns EADDRNOTAVAIL if
// no port can be used.
func (w *waiting) reuse(to netip.AddrPort, keep int, now time.Duration) (int, error) {
	const attempts = 8 // another program may use a port meanwhile
	for range attempts {
		from, ok := w.take(to, keep, now)
		if !ok {
			break
		}
		fd, err := socket.ConnectFrom(from, to)
		if shortage(err) != reasonPorts {
			return fd, err
		}
	}
	return -1, unix.EADDRNOTAVAIL
}
