package bpf

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clientArg is the first argument of a process that Try starts. The Services follow it.
	clientArg = "connect-to-test-services"

	// greeting is the answer of backends, and clientEnd the last line of a report.
	greeting  = "balanced"
	clientEnd = "done"

	clientTimeout = time.Second // for each call
)

// IsClient reports whether Try has started a process with this command line.
func IsClient(args []string) bool { return len(args) > 1 && args[1] == clientArg }

// Client connects to the Services of a command line, and prints the errors.
func Client(args []string, out io.Writer) error {
	results := make(chan error)
	for _, text := range args[2:] {
		go func() { results <- visit(text) }()
	}
	for range args[2:] {
		if err := <-results; err != nil {
			if _, err := fmt.Fprintln(out, err); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintln(out, clientEnd)
	return err
}

// The ways to reach a Service.
const (
	byTCP          = "tcp"
	byUDP          = "udp"
	byConnectedUDP = "connected-udp"
)

// visit connects or sends to a Service, such as "tcp/192.0.0.8:8", and verifies that the answer comes from its address.
func visit(text string) error {
	way, at, _ := strings.Cut(text, "/")
	service, err := netip.ParseAddrPort(at)
	if err != nil {
		return err
	}
	kind := unix.SOCK_DGRAM
	if way == byTCP {
		kind = unix.SOCK_STREAM
	}
	fd, err := openClient(service.Addr(), kind)
	if err != nil {
		return fmt.Errorf("%s: open a socket: %w", text, err)
	}
	defer func() { _ = unix.Close(fd) }() // all is read
	if way == byUDP {
		err = exchange(fd, service)
	} else {
		err = connect(fd, service)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// openClient opens a socket for a Service. If it is not balanced, its packets reach the first router at most.
func openClient(to netip.Addr, kind int) (int, error) {
	family, level, hops := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TTL
	if to.Is6() {
		family, level, hops = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	wait := unix.NsecToTimeval(clientTimeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1), unix.SetsockoptInt(fd, level, hops, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// connect connects a socket, and verifies its peer and the answer. It sends a request, which TCP does not need.
func connect(fd int, service netip.AddrPort) error {
	if err := unix.Connect(fd, sockaddr(service)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("read the peer: %w", err)
	}
	if got := addrPort(peer); got != service {
		return fmt.Errorf("the peer seems to be %s", got)
	}
	if _, err := unix.Write(fd, []byte("?")); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	_, err = answer(fd)
	return err
}

// exchange sends a datagram, and verifies the source of the reply.
func exchange(fd int, service netip.AddrPort) error {
	if err := unix.Sendto(fd, []byte("?"), 0, sockaddr(service)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	from, err := answer(fd)
	if err == nil && from != service {
		err = fmt.Errorf("the reply seems to come from %s", from)
	}
	return err
}

// answer reads the reply of a backend, and returns the source of a datagram.
func answer(fd int) (from netip.AddrPort, err error) {
	b := make([]byte, 2*len(greeting))
	n, sa, err := unix.Recvfrom(fd, b, unix.MSG_WAITALL)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("receive: %w", err)
	}
	if got := string(b[:n]); got != greeting {
		return netip.AddrPort{}, fmt.Errorf("another program replies %q", got)
	}
	return addrPort(sa), nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
