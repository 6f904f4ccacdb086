package socket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"

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
