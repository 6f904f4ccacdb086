package relay

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// maxDatagram is the size of the largest datagram.
const maxDatagram = 65535

// batchSize is how many datagrams are received at once at most.
const batchSize = 32

// socket is a UDP socket. It is used on one loop.
type socket interface {
	local() netip.AddrPort

	// read reads datagrams, as many as are there and the batch has room for, and returns how many.
	read(b *batch) (int, error)

	// write sends the first datagrams of a batch to their addresses. It drops datagrams that the kernel does not take.
	write(b *batch, n int)

	// send sends a datagram on a connected socket, or drops it if the kernel does not take it.
	send(data []byte) error
}

// addrOf returns an address of package net, one of IPv4 as such.
func addrOf(a net.Addr) netip.AddrPort {
	at := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// batch has room for datagrams.
type batch struct {
	messages []ipv4.Message // the type of package ipv6 is the same
	data     [batchSize][1][]byte
	control  [batchSize][]byte
}

func newBatch() *batch {
	const control = 64 // the destination of a datagram, of either family
	b := &batch{messages: make([]ipv4.Message, batchSize)}
	room := make([]byte, batchSize*(maxDatagram+control))
	for i := range b.data {
		b.data[i][0], room = room[:maxDatagram:maxDatagram], room[maxDatagram:]
		b.control[i], room = room[:control:control], room[control:]
	}
	return b
}

// clear makes room for some datagrams.
func (b *batch) clear(n int) []ipv4.Message {
	for i := range n {
		b.messages[i] = ipv4.Message{Buffers: b.data[i][:], OOB: b.control[i]}
		b.data[i][0] = b.data[i][0][:maxDatagram]
	}
	return b.messages[:n]
}

// address makes the first datagrams ones to an address, and returns how many bytes they have. Control is their control
// message.
func (b *batch) address(n int, to net.Addr, control []byte) (bytes int64) {
	for i := range n {
		m := &b.messages[i]
		b.data[i][0] = b.data[i][0][:m.N]
		bytes += int64(m.N)
		m.Addr, m.OOB = to, control
	}
	return bytes
}

// destination returns to which address of this host a datagram was sent. It returns no multicast address, as that is no
// source.
func destination(m *ipv4.Message) netip.Addr {
	var v4 ipv4.ControlMessage
	var v6 ipv6.ControlMessage
	to := net.IP(nil)
	if addrOf(m.Addr).Addr().Is4() {
		if v4.Parse(m.OOB[:m.NN]) == nil {
			to = v4.Dst
		}
	} else if v6.Parse(m.OOB[:m.NN]) == nil {
		to = v6.Dst
	}
	a, _ := netip.AddrFromSlice(to)
	if a.IsMulticast() {
		return netip.Addr{}
	}
	return a.Unmap()
}

// from returns the control message that sets the source of a datagram; nil if the address is not known.
func from(local netip.Addr) []byte {
	switch {
	case local.Is4():
		return (&ipv4.ControlMessage{Src: local.AsSlice()}).Marshal()
	case local.Is6():
		return (&ipv6.ControlMessage{Src: local.AsSlice()}).Marshal()
	}
	return nil
}
