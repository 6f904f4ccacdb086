// Package datagram opens UDP sockets, and sends ICMP errors about datagrams.
package datagram

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of the receive and send buffer of a listening socket, as far as the
// kernel allows it.
const receiveBuffer = 1 << 20

// open opens a UDP socket for a family of addresses and calls the steps that set it up.
func open(like netip.Addr, steps ...func(fd int) error) (int, error) {
	fd, err := unix.Socket(family(like), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	for _, step := range steps {
		if err := step(fd); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// Listen opens a UDP socket at an address and prepares it, in the network namespace of the thread.
func Listen(at netip.AddrPort) (int, error) {
	return open(at.Addr(), func(fd int) error {
		if at.Addr().Is4() {
			return nil
		}
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
	}, bind(at), func(fd int) error { return Prepare(fd, at.Addr()) })
}

// bind returns the step that binds a socket.
func bind(at netip.AddrPort) func(fd int) error {
	return func(fd int) error { return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at))) }
}

// connect returns the step that connects a socket. It discards datagrams of others that arrived before the socket was
// connected: the kernel does not.
func connect(to netip.AddrPort) func(fd int) error {
	return func(fd int) error {
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			return os.NewSyscallError("connect", err)
		}
		const most = 1 << 16 // in case the peer sends without end
		var discarded [1]byte
		for range most {
			if _, _, err := unix.Recvfrom(fd, discarded[:], unix.MSG_DONTWAIT); err != nil {
				return nil
			}
		}
		return nil
	}
}

// Prepare sets the buffers of a socket that is bound to an address. If that is all addresses, the socket receives to
// which one a datagram was sent, as control message.
func Prepare(fd int, at netip.Addr) error {
	if at.IsUnspecified() {
		if err := requestDestinations(fd, at); err != nil {
			return err
		}
	}
	for _, buffer := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer[0], receiveBuffer) != nil { // it needs CAP_NET_ADMIN
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer[1], receiveBuffer)
		}
	}
	return nil
}

func requestDestinations(fd int, at netip.Addr) error {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if at.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fmt.Errorf("request the local address of datagrams: %w", err)
	}
	return nil
}

// Dial opens a UDP socket that is connected to an address, in the network namespace of the thread.
func Dial(to netip.AddrPort) (int, error) { return open(to.Addr(), connect(to)) }

// LocalAddr returns the address of a socket.
func LocalAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("%T is not an address of a UDP socket", sa)
}

// sockaddr returns an address in the form that system calls take.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
