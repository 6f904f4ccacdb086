package socket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw is a sockaddr_in or sockaddr_in6.
type raw [unix.SizeofSockaddrInet6]byte

// Where the fields of a sockaddr_in and a sockaddr_in6 are.
const (
	portAt  = 2
	inet4At = 4
	inet6At = 8
	scopeAt = 24
)

// addr returns the address, without its scope, and one of IPv4 as such.
func (r *raw) addr() netip.AddrPort {
	port := binary.BigEndian.Uint16(r[portAt:])
	if binary.NativeEndian.Uint16(r[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(r[inet4At:])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(r[inet6At:])).Unmap(), port)
}

// scoped returns the address. The zone of a link-local one is the number of its interface.
func (r *raw) scoped() netip.AddrPort {
	at, scope := r.addr(), binary.NativeEndian.Uint32(r[scopeAt:])
	if scope == 0 || at.Addr().Is4() {
		return at
	}
	return netip.AddrPortFrom(at.Addr().WithZone(strconv.FormatUint(uint64(scope), 10)), at.Port())
}

// set stores an address and returns its size.
func (r *raw) set(at netip.AddrPort) uintptr {
	binary.NativeEndian.PutUint16(r[:], uint16(family(at.Addr())))
	binary.BigEndian.PutUint16(r[portAt:], at.Port())
	if at.Addr().Is4() {
		b := at.Addr().As4()
		copy(r[inet4At:], b[:])
		return unix.SizeofSockaddrInet4
	}
	b := at.Addr().As16()
	copy(r[inet6At:], b[:])
	binary.NativeEndian.PutUint32(r[scopeAt:], scope(at.Addr()))
	return unix.SizeofSockaddrInet6
}

// scope returns the number of the interface in the zone of an address; 0: it has none.
func scope(a netip.Addr) uint32 {
	n, err := strconv.ParseUint(a.Zone(), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// sockaddr converts an address.
func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: scope(at.Addr())}
}

// Addr returns the address of a socket.
func Addr(fd int) (netip.AddrPort, error) {
	s, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
	}
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("address of a socket: %w", unix.EAFNOSUPPORT)
}

// ListenUDP opens a UDP socket at an address, in the network namespace of the thread.
func ListenUDP(at netip.AddrPort) (int, error) {
	return open(unix.SOCK_DGRAM, at.Addr(), bind(at), setBuffers)
}

// DialUDP opens a UDP socket that is connected to an address, in the network namespace of the thread.
func DialUDP(to netip.AddrPort) (int, error) { return open(unix.SOCK_DGRAM, to.Addr(), connectUDP(to)) }

// open opens a socket for TCP or UDP and a family of addresses, and calls the steps that set it up.
func open(kind int, like netip.Addr, steps ...func(fd int) error) (int, error) {
	fd, err := unix.Socket(family(like), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if kind == unix.SOCK_STREAM {
		setTCP(fd)
	}
	for _, step := range steps {
		if err := step(fd); err != nil {
			Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// bind returns the step that binds a socket.
func bind(at netip.AddrPort) func(fd int) error {
	return func(fd int) error { return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at))) }
}

// connectUDP returns the step that connects a socket. It discards datagrams of others that arrived before the socket
// was connected: the kernel does not.
func connectUDP(to netip.AddrPort) func(fd int) error {
	return func(fd int) error {
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			return os.NewSyscallError("connect", err)
		}
		const most = 1 << 16 // in case the peer sends without end
		var discarded [1]byte
		for range most {
			if _, _, err := Receive(fd, discarded[:]); err != nil {
				break
			}
		}
		return nil
	}
}

// AdoptUDP makes a listening socket of a previous run non-blocking, and sets the same options as ListenUDP.
func AdoptUDP(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return setBuffers(fd)
}

// setBuffers sets the buffers of a listening socket to 1 MiB, as far as the kernel allows it. It returns no error.
func setBuffers(fd int) error {
	const size = 1 << 20
	for _, buffer := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer[0], size) != nil { // it needs CAP_NET_ADMIN
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer[1], size)
		}
	}
	return nil
}

// Receive receives a datagram. It returns its size and its sender.
func Receive(fd int, b []byte) (int, netip.AddrPort, error) {
	var from raw
	size := uint32(len(from))
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), 0, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)))
	if e != 0 {
		return 0, netip.AddrPort{}, e
	}
	return int(n), from.scoped(), nil
}

// SendTo sends a datagram to an address.
func SendTo(fd int, b []byte, to netip.AddrPort) syscall.Errno {
	var a raw
	size := a.set(to)
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_NOSIGNAL, uintptr(unsafe.Pointer(&a)), size)
	return e
}
