package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// socket is a UDP socket whose calls the tests make one by one.
type socket struct {
	fd, family int
}

func openSocket(family int) (*socket, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	wait := unix.NsecToTimeval(int64(machine.Scale(time.Second / 2)))
	return &socket{fd, family}, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
}

func (s *socket) close() { _ = unix.Close(s.fd) } // nothing is left to lose

// withSocket calls a function with a new socket.
func withSocket(family int, f func(*socket) error) error {
	s, err := openSocket(family)
	if err != nil {
		return err
	}
	defer s.close()
	return f(s)
}

func (s *socket) address(to string) unix.Sockaddr {
	at := netip.MustParseAddrPort(to)
	if s.family == unix.AF_INET {
		return lab.Sockaddr(at)
	}
	return mapped(at)
}

// mapped returns an address for an IPv6 socket; IPv4 addresses are mapped.
func mapped(at netip.AddrPort) *unix.SockaddrInet6 {
	return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
}

func (s *socket) connect(to string) error {
	if err := unix.Connect(s.fd, s.address(to)); err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	return nil
}

// disconnect connects to AF_UNSPEC.
func (s *socket) disconnect() error {
	sa := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		return errno
	}
	return nil
}

// connectAndAsk connects to a Service, and verifies its answers.
func (s *socket) connectAndAsk(service string) error {
	if err := s.connect(service); err != nil {
		return err
	}
	_, err := s.want("", service)
	return err
}

// ask sends a datagram to an address, or to the peer if that is empty. It returns the backend that answered, and the
// source of the reply.
func (s *socket) ask(to string) (answered, from string, err error) {
	if to == "" {
		_, err = unix.Write(s.fd, []byte("?"))
	} else {
		err = unix.Sendto(s.fd, []byte("?"), 0, s.address(to))
	}
	if err != nil {
		return "", "", fmt.Errorf("send: %w", err)
	}
	answered, from, err = s.receive()
	if err != nil {
		return "", "", fmt.Errorf("receive: %w", err)
	}
	return answered, from, nil
}

// receive returns a datagram and its source. A signal of the Go runtime interrupts a call that has a timeout
// (signal(7)).
func (s *socket) receive() (datagram, from string, err error) {
	b := make([]byte, 64)
	for {
		n, sa, err := unix.Recvfrom(s.fd, b, 0)
		if err == nil {
			return string(b[:n]), text(sa), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return "", "", err
		}
	}
}

// want asks twice, and verifies that the same backend answers from the address of the Service. It returns the backend.
func (s *socket) want(to, service string) (answered string, err error) {
	for range 2 {
		by, from, err := s.ask(to)
		switch {
		case err != nil:
			return "", err
		case from != service:
			return "", fmt.Errorf("the reply seems to come from %s, want %s", from, service)
		case answered != "" && by != answered:
			return "", fmt.Errorf("%s answers after %s", by, answered)
		}
		answered = by
	}
	sa, err := unix.Getpeername(s.fd)
	if err == nil && text(sa) != service {
		err = fmt.Errorf("the peer is %s, want %s", text(sa), service)
	}
	return answered, err
}

// text returns an address, as IPv4 if it is a mapped one.
func text(sa unix.Sockaddr) string {
	at := lab.AddrPort(sa)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

const (
	dns4, dns6 = "10.96.0.10:53", "[fd00::10]:53"
	other4     = "10.96.0.11:53"
)

// dns is a node with Services over UDP, and their backends.
func dns(t *testing.T) *node {
	n := newNode(t)
	backends := [][]string{{"127.0.0.1:53", "127.0.0.2:53"}, {"[::1]:53", "[::1]:54"}, {"127.0.0.3:53"}}
	for _, list := range backends {
		for _, at := range list {
			serve(t, n.opt.NetNS, at)
		}
	}
	for i, vip := range []string{dns4, dns6, other4} {
		n.write(service(vip, 17, OfNode, backends[i]...)...)
	}
	return n
}

// with runs a function with a new socket.
func (n *node) with(family int, f func(*socket) error) {
	n.t.Helper()
	n.run(func() error { return withSocket(family, f) })
}

func (n *node) udpSockets() (list []Socket) {
	n.t.Helper()
	list, err := n.conn.Sockets()
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

func TestConnectedUDP(t *testing.T) {
	n := dns(t)
	for name, c := range map[string]struct {
		family int
		vip    string
	}{"IPv4": {unix.AF_INET, dns4}, "IPv6": {unix.AF_INET6, dns6}, "mapped": {unix.AF_INET6, dns4}} {
		count := map[string]int{}
		for range 40 {
			n.with(c.family, func(s *socket) error {
				if err := s.connect(c.vip); err != nil {
					return err
				}
				answered, err := s.want("", c.vip)
				count[answered]++
				list := n.udpSockets()
				if len(list) != 1 || list[0].Backend.String() != answered || list[0].Service.String() != c.vip ||
					list[0].NetNS != n.conn.cookie {
					return errors.Join(err, fmt.Errorf("%s: sockets %+v, want one at %s", name, list, answered))
				}
				return err
			})
		}
		if len(count) != 2 {
			t.Errorf("%s: answers %v, want both backends", name, count)
		}
	}
	if list := n.udpSockets(); len(list) != 0 {
		t.Errorf("after all are closed: %+v", list)
	}
}

// A socket may connect many times, to Services and to others, and may send to other addresses meanwhile.
func TestUDPConnectsAgain(t *testing.T) {
	n := dns(t)
	for range 20 {
		n.with(unix.AF_INET, func(s *socket) error {
			if err := s.connect(dns4); err != nil {
				return err
			}
			first, err := s.want("", dns4)
			if err != nil {
				return err
			}
			if err := s.connect(dns4); err != nil { // the same Service: the same backend
				return err
			}
			for _, to := range []string{"", dns4} {
				again, err := s.want(to, dns4)
				if err != nil || again != first {
					return fmt.Errorf("to %q: %s answers after %s: %w", to, again, first, err)
				}
			}
			if err := s.disconnect(); err != nil {
				return err
			}
			if err := s.connect(other4); err != nil {
				return err
			}
			if by, err := s.want("", other4); err != nil || by != "127.0.0.3:53" {
				return fmt.Errorf("%s answers: %w", by, err)
			}
			if list := n.udpSockets(); len(list) != 1 || list[0].Service.String() != other4 {
				return fmt.Errorf("sockets %+v", list)
			}
			if err := s.connect("127.0.0.3:53"); err != nil { // no Service, but the same backend
				return err
			}
			if list := n.udpSockets(); len(list) != 0 {
				return fmt.Errorf("connected to no Service, but noted: %+v", list)
			}
			_, err = s.want("", "127.0.0.3:53")
			return err
		})
	}
}

// A socket that sends to a Service and connects to it later stays on its backend. The programs do not change
// datagrams that a connected socket sends to another Service.
func TestUDPSendsAndConnects(t *testing.T) {
	n := dns(t)
	for range 20 {
		n.with(unix.AF_INET, func(s *socket) error {
			first, from, err := s.ask(dns4)
			if err != nil || from != dns4 {
				return fmt.Errorf("from %s: %w", from, err)
			}
			if err := errors.Join(s.disconnect(), s.connect(dns4)); err != nil {
				return err
			}
			if by, err := s.want("", dns4); err != nil || by != first {
				return fmt.Errorf("%s answers after %s: %w", by, first, err)
			}
			if _, _, err := s.ask(other4); err == nil {
				return errors.New("a connected socket has a reply of another Service")
			}
			return nil
		})
	}
}

// The programs leave sockets that keep an earlier source address, and sockets for which the map has no room, to the
// packet plane.
func TestUDPForPackets(t *testing.T) {
	n := dns(t)
	address4(t, n.opt.NetNS, "10.96.0.10/32") // a route to the Service, without a server
	refuse := func(name string, before func(*socket) error) {
		t.Helper()
		n.with(unix.AF_INET, func(s *socket) error {
			if err := errors.Join(before(s), s.connect(dns4)); err != nil {
				return err
			}
			if by, _, err := s.ask(""); err == nil {
				return fmt.Errorf("%s: %s answers", name, by)
			}
			if by, _, err := s.ask(dns4); err == nil {
				return fmt.Errorf("%s: %s answers a datagram with the address", name, by)
			}
			if list := n.udpSockets(); len(list) != 0 && list[0].Socket <= 1<<60 {
				return fmt.Errorf("%s: noted: %+v", name, list[0])
			}
			return nil
		})
	}
	refuse("bound", func(s *socket) error { return unix.Bind(s.fd, s.address("127.0.0.1:0")) })
	refuse("connected before", func(s *socket) error { return s.connect("127.0.0.3:53") })
	refuse("connected to another Service before", func(s *socket) error { return s.connect(other4) })
	fill(t, n.conn.maps[sockMapUDPSockets])
	refuse("no room", func(*socket) error { return nil })
}

// fill adds sockets until there is no room.
func fill(t testing.TB, m *ebpf.Map) {
	t.Helper()
	value := make([]byte, m.ValueSize())
	for i := range uint64(m.MaxEntries()) + 1 {
		if err := put(m, 1<<60+i+1, value); isFull(err) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the map is never full")
}

// UDP sockets are balanced when they connect only with Options.ConnectedUDP.
func TestConnectedUDPIsOptional(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:53")
	n.write(service(dns4, 17, OfNode, "127.0.0.1:53")...)
	for _, is := range []bool{false, true} {
		n.opt.ConnectedUDP = is
		n.conn = n.open()
		n.write()
		err := n.inside(func() error {
			return withSocket(unix.AF_INET, func(s *socket) error { return s.connectAndAsk(dns4) })
		})
		if (err == nil) != is {
			t.Errorf("with ConnectedUDP %t: %v", is, err)
		}
	}
}
