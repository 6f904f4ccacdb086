package relay

import (
	"net"
	"net/netip"
)

// maxDatagram is the size of the largest datagram.
const maxDatagram = 65535

// udpSocket is a UDP socket. It is used on one loop.
type udpSocket interface {
	local() netip.AddrPort

	// receive receives a datagram, and returns its size and its sender. It returns EAGAIN if there is none.
	receive(b []byte) (int, netip.AddrPort, error)

	// send sends a datagram on a connected socket, or drops it if the kernel does not take it.
	send(b []byte) error

	// sendTo sends a datagram to an address, or drops it if the kernel does not take it.
	sendTo(b []byte, to netip.AddrPort)
}

// addrOf returns an address of package net, one of IPv4 as such.
func addrOf(a net.Addr) netip.AddrPort {
	at := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
