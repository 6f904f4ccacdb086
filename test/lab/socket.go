//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	errTimeout = errors.New("no answer in time")
	errAbort   = errors.New("association aborted")
)

// icmpError is an ICMP error message with the packet that it quotes.
type icmpError struct {
	ICMP
	errno  unix.Errno
	origin uint8
	quoted []byte // from the transport header on, for raw sockets
}

func (e *icmpError) Error() string {
	return fmt.Sprintf("ICMP type %d code %d from %s: %v", e.Type, e.Code, e.From, e.errno)
}

func (e *icmpError) portUnreachable() bool {
	if e.origin == unix.SO_EE_ORIGIN_ICMP6 {
		return e.Type == 1 && e.Code == 4
	}
	return e.Type == 3 && e.Code == 3
}

// socket is a client's connected socket. It uses poll, which is faster than the runtime's poller
// and reports ICMP errors that connect does not.
type socket struct {
	fd    int
	local netip.AddrPort
	took  time.Duration  // of connect
	raw   bool           // SCTP
	peer  netip.AddrPort // of a UDP socket that does not connect

	// mine, if set, reports whether an ICMP error belongs to this socket: raw sockets also receive ICMP errors of other
	// sockets.
	mine func(*icmpError) bool
}

// open opens a socket in the host's namespace without connecting it.
func (h *Host) open(p Probe) (*socket, error) {
	domain, family, kind, proto := unix.AF_INET, "4", unix.SOCK_DGRAM, int(p.Protocol)
	if p.To.Addr().Is6() {
		domain, family = unix.AF_INET6, "6"
	}
	switch p.Protocol {
	case TCP:
		kind = unix.SOCK_STREAM
	case SCTP:
		kind = unix.SOCK_RAW
	case Echo:
		if domain == unix.AF_INET6 {
			proto = unix.IPPROTO_ICMPV6
		}
	}
	fd := -1
	err := h.asClient(func() error {
		var err error
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s socket on %s: %w", p.Protocol, h.name, err)
	}
	s := &socket{fd: fd, raw: kind == unix.SOCK_RAW}
	err = s.prepare(h.source(p), p)
	if err == nil && p.Unconnected {
		err = enableDestination(fd, family)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// source returns the address to bind to. A Host that shares its machine must bind to its own address.
func (h *Host) source(p Probe) netip.AddrPort {
	from := p.From.Addr()
	if !from.IsValid() && h.outside {
		from = h.Addr(p.To.Addr())
	}
	if !from.IsValid() && p.From.Port() != 0 {
		from = defaultPrefix(p.To.Addr()).Addr()
	}
	return netip.AddrPortFrom(from, p.From.Port())
}

func (s *socket) prepare(from netip.AddrPort, p Probe) error {
	level, recverr, free := unix.SOL_IP, unix.IP_RECVERR, unix.IP_FREEBIND
	if p.To.Addr().Is6() {
		level, recverr, free = unix.SOL_IPV6, unix.IPV6_RECVERR, unix.IPV6_FREEBIND
	}
	if err := unix.SetsockoptInt(s.fd, level, recverr, 1); err != nil {
		return fmt.Errorf("enable ICMP errors: %w", err)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("allow reuse of the source: %w", err)
	}
	if !from.Addr().IsValid() {
		return nil
	}
	if err := unix.SetsockoptInt(s.fd, level, free, 1); err != nil {
		return fmt.Errorf("allow any source: %w", err)
	}
	if s.raw {
		from = netip.AddrPortFrom(from.Addr(), 0) // a raw socket has no ports
	}
	if err := unix.Bind(s.fd, Sockaddr(from)); err != nil {
		return fmt.Errorf("bind to %s: %w", from, err)
	}
	return nil
}

// connect connects, and for TCP waits for the handshake.
func (s *socket) connect(p Probe, deadline time.Time) error {
	to := p.To
	if s.raw {
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	address, began := Sockaddr(to), time.Now()
	var err error
	if p.Unconnected {
		s.peer = to
	} else {
		err = unix.Connect(s.fd, address)
	}
	if errors.Is(err, unix.EINPROGRESS) {
		err = s.wait(unix.POLLOUT, deadline)
	}
	s.took = time.Since(began)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.To, s.explain(err))
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return fmt.Errorf("read own address: %w", err)
	}
	s.local = AddrPort(name)
	return nil
}

// explain returns the ICMP error that caused an error, if there is one.
func (s *socket) explain(err error) error {
	if icmp := s.icmp(); icmp != nil {
		return icmp
	}
	return err
}

func isICMP(err error) bool {
	var icmp *icmpError
	return errors.As(err, &icmp)
}

// wait blocks until the socket is ready or has an error.
func (s *socket) wait(events int16, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errTimeout
		}
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: events}}
		n, err := unix.Poll(fds, int((left+time.Millisecond-1)/time.Millisecond))
		if errors.Is(err, unix.EINTR) || n == 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if fds[0].Revents != 0 && fds[0].Revents&unix.POLLERR == 0 {
			return nil
		}
		if err := s.failure(); err != nil {
			return err
		}
	}
}

// failure returns the pending error of the socket.
func (s *socket) failure() error {
	if icmp := s.icmp(); icmp != nil {
		return icmp
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return fmt.Errorf("read socket error: %w", err)
	}
	if code != 0 && !s.raw {
		return unix.Errno(code)
	}
	return nil
}

// icmp returns the next ICMP error for this socket from its error queue, or nil.
func (s *socket) icmp() *icmpError {
	for {
		e, more := s.nextICMP()
		if e != nil && (s.mine == nil || s.mine(e)) {
			return e
		}
		if !more {
			return nil
		}
	}
}

func (s *socket) nextICMP() (e *icmpError, more bool) {
	data, oob := make([]byte, 256), make([]byte, 512)
	n, oobn, _, _, err := unix.Recvmsg(s.fd, data, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, false
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, true
	}
	for _, m := range messages {
		if e := parseICMP(m); e != nil {
			e.quoted = data[:n]
			return e, true
		}
	}
	return nil, true
}

// parseICMP reads a struct sock_extended_err and the offender's address.
func parseICMP(m unix.SocketControlMessage) *icmpError {
	v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
	v6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
	const size = int(unsafe.Sizeof(unix.SockExtendedErr{}))
	if !v4 && !v6 || len(m.Data) < size {
		return nil
	}
	e := &icmpError{
		errno:  unix.Errno(binary.NativeEndian.Uint32(m.Data)),
		origin: m.Data[4],
		ICMP:   ICMP{Type: m.Data[5], Code: m.Data[6], MTU: binary.NativeEndian.Uint32(m.Data[8:])},
	}
	if e.origin != unix.SO_EE_ORIGIN_ICMP && e.origin != unix.SO_EE_ORIGIN_ICMP6 {
		return nil
	}
	offender := m.Data[size:]
	if v4 && len(offender) >= 8 {
		e.From, _ = netip.AddrFromSlice(offender[4:8])
	}
	if v6 && len(offender) >= 24 {
		e.From, _ = netip.AddrFromSlice(offender[8:24])
	}
	return e
}

func (s *socket) write(b []byte, deadline time.Time) error {
	for len(b) > 0 {
		n, err := s.send(b)
		switch {
		case err == nil:
			b = b[n:]
		case errors.Is(err, unix.EAGAIN):
			if err := s.wait(unix.POLLOUT, deadline); err != nil {
				return err
			}
		case errors.Is(err, unix.EPERM): // dropped in the output path; an ICMP error may follow
			return s.wait(0, deadline)
		default:
			return s.explain(err)
		}
	}
	return nil
}

func (s *socket) send(b []byte) (int, error) {
	if !s.peer.IsValid() {
		return unix.Write(s.fd, b)
	}
	return len(b), unix.Sendto(s.fd, b, 0, Sockaddr(s.peer))
}

// receive reads data that is there. A socket that is not connected has its own address from there.
func (s *socket) receive(b []byte) (int, error) {
	if !s.peer.IsValid() {
		return unix.Read(s.fd, b)
	}
	oob := make([]byte, 128)
	n, oobn, _, sender, err := unix.Recvmsg(s.fd, b, oob, 0)
	if err != nil {
		return 0, err
	}
	if from := AddrPort(sender); from != s.peer {
		return 0, fmt.Errorf("an answer came from %s", from)
	}
	s.local = netip.AddrPortFrom(destination(oob[:oobn]), s.local.Port())
	return n, nil
}

// read waits for data; a length of 0 is the end of a stream.
func (s *socket) read(b []byte, deadline time.Time) (int, error) {
	for {
		n, err := s.receive(b)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			if err = s.explain(err); !s.raw || isICMP(err) {
				return 0, err
			}
		}
		if err := s.wait(unix.POLLIN, deadline); err != nil {
			return 0, err
		}
	}
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// Sockaddr returns an address as system calls have it.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// AddrPort returns the address and port of a socket address; none if it has another family.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
