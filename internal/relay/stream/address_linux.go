package stream

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// raw is a sockaddr_in or sockaddr_in6.
type raw [unix.SizeofSockaddrInet6]byte

// Where the fields of a sockaddr_in and a sockaddr_in6 are.
const (
	portAt  = 2
	inet4At = 4
	inet6At = 8
)

// addr returns the address, without its scope, and one of IPv4 as such.
func (r *raw) addr() netip.AddrPort {
	port := binary.BigEndian.Uint16(r[portAt:])
	if binary.NativeEndian.Uint16(r[:]) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(r[inet4At:])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(r[inet6At:])).Unmap(), port)
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
	return unix.SizeofSockaddrInet6
}
