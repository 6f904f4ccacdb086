// Package socket has the system calls of non-blocking TCP and UDP sockets and of pipes between them, and sends ICMP
// errors. The calls return at once, so most are made without the scheduler of Go, which keeps them short.
package socket

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The settings of keep-alive probes, in seconds: as package net has them.
const (
	keepAliveIdle     = 15
	keepAliveInterval = 15
)

// ListenTCP opens a listening socket at an address, in the network namespace of the thread. Accepted connections have
// the settings that it has, such as TCP_NODELAY and keep-alive.
func ListenTCP(at netip.AddrPort) (int, error) {
	return open(unix.SOCK_STREAM, at.Addr(), bind(at), listen)
}

// AdoptTCP makes a listening socket of a previous run non-blocking, and sets the same options as ListenTCP.
func AdoptTCP(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	setTCP(fd)
	return listen(fd)
}

// listen makes a socket listen. The kernel lowers the length of the queue to net.core.somaxconn.
func listen(fd int) error { return os.NewSyscallError("listen", unix.Listen(fd, math.MaxInt32)) }

// setTCP sets the options that all connections have. Errors mean that the kernel has no such setting.
func setTCP(fd int) {
	option(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // ConnectFrom binds a port in TIME_WAIT
	option(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	option(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	option(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveIdle)
	option(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAliveInterval)
}

// Destination returns the address to which the client of an accepted connection has connected: if
// rules of netfilter have changed it, the one before.
func Destination(fd int) (netip.AddrPort, error) {
	const soOriginalDst = 80 // linux/netfilter_ipv4.h; IPv6 has the same number
	for _, level := range []uintptr{unix.SOL_IP, unix.SOL_IPV6} {
		var a raw
		size := uint32(len(a))
		_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, soOriginalDst,
			uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&size)), 0)
		if e == 0 {
			return a.addr(), nil
		}
	}
	at, err := Addr(fd)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err
}

// Accept accepts a connection. It returns its client, and an IPv4 address as such.
func Accept(fd int) (int, netip.AddrPort, error) {
	var a raw
	size := uint32(len(a))
	n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if e != 0 {
		return -1, netip.AddrPort{}, e
	}
	return int(n), a.addr(), nil
}

// Connect opens a socket and starts to connect it. The socket is connected, or the attempt has failed, when the
// socket is ready to write.
func Connect(to netip.AddrPort) (int, error) {
	return open(unix.SOCK_STREAM, to.Addr(), connectTCP(to))
}

// ConnectFrom is Connect from an address and port of this host. A Reusable connection to the same address may have
// them; the kernel then replaces it (tcp_twsk_unique in net/ipv4/tcp_ipv4.c). It returns EADDRNOTAVAIL or EADDRINUSE
// if the port is in use.
func ConnectFrom(from, to netip.AddrPort) (int, error) {
	return open(unix.SOCK_STREAM, to.Addr(), bind(from), connectTCP(to))
}

// connectTCP returns the step that starts to connect a socket.
func connectTCP(to netip.AddrPort) func(fd int) error {
	return func(fd int) error {
		var a raw
		size := a.set(to)
		_, _, e := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a)), size)
		if e != 0 && e != unix.EINPROGRESS {
			return os.NewSyscallError("connect", e)
		}
		return nil
	}
}

// Reusable reports whether ConnectFrom can use the port of a TCP socket once the socket is closed, although its
// connection is in TIME_WAIT: the connection must have timestamps, and come from Connect or ConnectFrom.
func Reusable(fd int) bool {
	var info unix.TCPInfo
	size := uint32(unsafe.Offsetof(info.Rto)) // the state and the options come before
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	const timestamps = 1 // TCPI_OPT_TIMESTAMPS in linux/tcp.h
	return e == 0 && info.State == unix.BPF_TCP_CLOSE && info.Options&timestamps != 0
}

// Error returns and clears the error of a socket; nil: it has none.
func Error(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = syscall.Errno(n)
	}
	return err
}

// Read reads bytes. It returns 0 if the peer has closed its direction.
func Read(fd int, b []byte) (int, syscall.Errno) {
	return call(unix.SYS_READ, fd, b, 0)
}

// Write writes bytes, of TCP perhaps fewer, or sends a datagram.
func Write(fd int, b []byte) (int, syscall.Errno) {
	return call(unix.SYS_SENDTO, fd, b, unix.MSG_NOSIGNAL)
}

func call(number uintptr, fd int, b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, e := unix.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), flags, 0, 0)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// Splice moves up to a number of bytes from a socket to a pipe or back, inside of the kernel. It returns 0 if the
// peer has closed its direction.
func Splice(from, to, count int) (int, syscall.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(count),
			unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// CloseWrite closes the direction to the peer.
func CloseWrite(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0) }

// Unsent returns how many bytes that were written the peer has not acknowledged.
func Unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0 // it is not connected any more
	}
	return n
}

// SetReset makes the socket send a reset when it is closed.
func SetReset(fd int) {
	linger := unix.Linger{Onoff: 1}
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&linger)), unsafe.Sizeof(linger), 0)
}

// Close closes a file descriptor.
func Close(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func option(fd, level, name int, value int32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
}

// Pipe is a pipe, with one end to read and one to write.
type Pipe struct{ Read, Write int }

// pipeSize is the size of a pipe, if the kernel grants it: a user without privileges may have
// /proc/sys/fs/pipe-user-pages-soft pages in all pipes.
const pipeSize = 1 << 20

// NewPipe opens a non-blocking pipe.
func NewPipe() (Pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return Pipe{}, err
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // else it has 64 KiB
	return Pipe{Read: fds[0], Write: fds[1]}, nil
}

// Close closes both ends.
func (p Pipe) Close() {
	Close(p.Read)
	Close(p.Write)
}

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
