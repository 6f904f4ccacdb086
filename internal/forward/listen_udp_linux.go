package forward

import (
	"errors"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// udpPoller is the UDP half of poller.
type udpPoller struct {
	*udp

	mu    sync.Mutex
	next  int               // the worker of the next listener
	ports *ports            // nil before the first listener
	raw   *datagram.Refuser // nil: the program is not allowed to send ICMP errors
}

// open reads what the network namespace of the thread allows.
func (u *udpPoller) open() error {
	if u.ports != nil {
		return nil
	}
	ports, err := newPorts()
	if err != nil {
		return err
	}
	if u.raw, err = datagram.NewRefuser(); err != nil {
		u.engine.options.Log.Info("Clients get no ICMP error when a UDP backend refuses their datagrams", "reason", err.Error())
	}
	u.ports = ports
	return nil
}

func (u *udpPoller) close() {
	if u.raw != nil {
		u.raw.Close()
	}
}

// listenUDP opens a UDP listener. Each belongs to one worker, so that the datagrams of a flow stay in order.
func (p *poller) listenUDP(l *Listener) (server, error) {
	p.udp.mu.Lock()
	defer p.udp.mu.Unlock()
	fd := -1
	err := netns.Do(p.engine.options.NetNS, func() (err error) {
		if err = p.udp.open(); err == nil {
			fd, err = socketUDP(l.spec)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	at, err := datagram.LocalAddr(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	w := p.workers[p.udp.next%len(p.workers)]
	p.udp.next++
	listener := &udpListener{
		loop: &w.udp, fd: fd, port: at.Port(), flows: map[datagram.Path]*flow{},
		settings: &settings{balancer: l.spec.Balancer, admit: l.spec.Admit},
	}
	listener.server = &udpServer{listener: listener, at: at}
	w.Post(listener.start)
	return listener.server, nil
}

// socketUDP returns the socket of a listener.
func socketUDP(s Spec) (int, error) {
	if s.Inherited == nil {
		return datagram.Listen(s.Addr)
	}
	return inherit(s.Inherited, func(fd int) error { return datagram.Prepare(fd, s.Addr.Addr()) })
}

// inherit returns a duplicate of an inherited socket, and closes the file. prepare sets the socket up.
func inherit(f *os.File, prepare func(fd int) error) (int, error) {
	fd, err := duplicate(f)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = prepare(fd)
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// duplicate duplicates the file descriptor of a file.
func duplicate(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, failed := -1, error(nil)
	err = raw.Control(func(old uintptr) {
		fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = os.NewSyscallError("fcntl", failed)
	}
	return fd, err
}

// udpServer is the side of a udpListener that any goroutine may call.
type udpServer struct {
	listener *udpListener
	at       netip.AddrPort
}

func (s *udpServer) addr() netip.AddrPort { return s.at }

func (s *udpServer) set(new *settings) {
	l := s.listener
	l.loop.Post(func() {
		l.settings, l.swept = new, nil
		l.sweep()
	})
}

func (s *udpServer) close() {
	s.listener.loop.Post(s.listener.reset)
}

// retire implements adopter.
func (s *udpServer) retire() { s.close() }
