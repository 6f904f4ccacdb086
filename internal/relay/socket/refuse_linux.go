package socket

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Refuser sends ICMP errors to clients, through a raw socket.
type Refuser struct{ fd4, fd6 int }

// NewRefuser opens a Refuser in the network namespace of the thread. It needs CAP_NET_RAW.
func NewRefuser() (*Refuser, error) {
	fd4, err := openRaw(unix.AF_INET, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, err
	}
	r := &Refuser{fd4: fd4, fd6: -1}
	// The raw sockets only send.
	_ = unix.SetsockoptInt(fd4, unix.SOL_RAW, unix.ICMP_FILTER, -1)
	if r.fd6, err = openRaw(unix.AF_INET6, unix.IPPROTO_ICMPV6); err != nil {
		r.fd6 = -1 // the kernel has no IPv6
		return r, nil
	}
	block := unix.ICMPv6Filter{}
	for i := range block.Data {
		block.Data[i] = 1<<32 - 1
	}
	_ = unix.SetsockoptICMPv6Filter(r.fd6, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &block)
	return r, nil
}

func openRaw(family, protocol int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// Close closes the sockets.
func (r *Refuser) Close() {
	for _, fd := range []int{r.fd4, r.fd6} {
		if fd >= 0 {
			Close(fd)
		}
	}
}

// Refuse sends a client the error "port unreachable" about a datagram of some length that it sent to an address of this
// host, which is the source of the error. The datagram in the error has the addresses that this host's sockets see;
// conntrack translates them back together with the source.
func (r *Refuser) Refuse(client, to netip.AddrPort, length int) error {
	var packet, source []byte
	fd := r.fd4
	if client.Addr().Is4() {
		packet = unreachable4(client, to, length)
		source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to.Addr().As4()})
	} else {
		fd = r.fd6
		packet = unreachable6(client, to, length)
		source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: to.Addr().As16()})
	}
	destination := sockaddr(netip.AddrPortFrom(client.Addr(), 0))
	return os.NewSyscallError("sendmsg", unix.Sendmsg(fd, packet, source, destination, unix.MSG_DONTWAIT))
}

// maxSize is the size of the largest datagram.
const maxSize = 65535

// Sizes of headers, in bytes.
const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	icmpHeader = 8
)

// Types and codes of "port unreachable".
const (
	icmpUnreachable, icmpPort     = 3, 3
	icmpv6Unreachable, icmpv6Port = 1, 4
)

// hops is the remaining hop limit in the header of the datagram; its real value is not known.
const hops = 64

func unreachable4(client, to netip.AddrPort, length int) []byte {
	packet := make([]byte, icmpHeader+ipv4Header+udpHeader)
	packet[0], packet[1] = icmpUnreachable, icmpPort
	ip := packet[icmpHeader:]
	ip[0] = 4<<4 | ipv4Header/4
	binary.BigEndian.PutUint16(ip[2:], uint16(min(ipv4Header+udpHeader+length, maxSize)))
	ip[8], ip[9] = hops, unix.IPPROTO_UDP
	copy(ip[12:16], client.Addr().AsSlice())
	copy(ip[16:20], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipv4Header]))
	putUDP(ip[ipv4Header:], client.Port(), to.Port(), length)
	binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	return packet
}

// unreachable6 leaves the checksum of ICMP to the kernel, which computes it with the addresses.
func unreachable6(client, to netip.AddrPort, length int) []byte {
	packet := make([]byte, icmpHeader+ipv6Header+udpHeader)
	packet[0], packet[1] = icmpv6Unreachable, icmpv6Port
	ip := packet[icmpHeader:]
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], uint16(min(udpHeader+length, maxSize)))
	ip[6], ip[7] = unix.IPPROTO_UDP, hops
	copy(ip[8:24], client.Addr().AsSlice())
	copy(ip[24:40], to.Addr().AsSlice())
	putUDP(ip[ipv6Header:], client.Port(), to.Port(), length)
	return packet
}

// putUDP writes a UDP header without a checksum.
func putUDP(udp []byte, from, to uint16, length int) {
	binary.BigEndian.PutUint16(udp, from)
	binary.BigEndian.PutUint16(udp[2:], to)
	binary.BigEndian.PutUint16(udp[4:], uint16(min(udpHeader+length, maxSize)))
}

// checksum returns the Internet checksum (RFC 1071) of data of even length.
func checksum(data []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 1<<16-1 {
		sum = sum>>16 + sum&(1<<16-1)
	}
	return ^uint16(sum)
}
