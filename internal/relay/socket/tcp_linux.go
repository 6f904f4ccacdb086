// Package socket has the system calls of non-blocking TCP and UDP sockets and of pipes between them, and sends ICMP
// errors. The calls return at once, so most are made without the scheduler of Go, which keeps them short.
package socket

import (
	"math"
	"net/netip"
	"os"
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
