//go:build linux

package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TCP flags of a Segment.
const (
	FIN uint8 = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Segment is a packet with arbitrary header fields. The fields after Payload are for TCP.
type Segment struct {
	Protocol Protocol // TCP or UDP
	Src, Dst netip.AddrPort
	Payload  []byte

	Seq, Ack uint32
	Flags    uint8
}

const (
	ip4Header, ip6Header, tcpHeader, udpHeader = 20, 40, 20, 8

	hopLimit  = 64
	tcpWindow = 65535
)

// Packet returns the segment with its headers and checksums.
func (s Segment) Packet() []byte {
	body := s.transport()
	src, dst := s.Src.Addr().AsSlice(), s.Dst.Addr().AsSlice()
	pseudo := append(append([]byte{}, src...), dst...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(body)))
	pseudo = append(pseudo, 0, 0, 0, byte(s.Protocol))
	at := 16 // where the checksum is
	if s.Protocol == UDP {
		at = 6
	}
	binary.BigEndian.PutUint16(body[at:], internetChecksum(append(pseudo, body...)))
	return append(s.header(len(body)), body...)
}

func (s Segment) transport() []byte {
	b := binary.BigEndian.AppendUint16(nil, s.Src.Port())
	b = binary.BigEndian.AppendUint16(b, s.Dst.Port())
	if s.Protocol == UDP {
		b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(s.Payload)))
		b = append(b, 0, 0)
		return append(b, s.Payload...)
	}
	b = binary.BigEndian.AppendUint32(b, s.Seq)
	b = binary.BigEndian.AppendUint32(b, s.Ack)
	b = append(b, tcpHeader/4<<4, s.Flags)
	b = binary.BigEndian.AppendUint16(b, tcpWindow)
	b = append(b, 0, 0, 0, 0)
	return append(b, s.Payload...)
}

func (s Segment) header(body int) []byte {
	src, dst := s.Src.Addr().AsSlice(), s.Dst.Addr().AsSlice()
	if s.Dst.Addr().Is6() {
		h := binary.BigEndian.AppendUint16([]byte{6 << 4, 0, 0, 0}, uint16(body))
		return append(append(append(h, byte(s.Protocol), hopLimit), src...), dst...)
	}
	h := binary.BigEndian.AppendUint16([]byte{4<<4 | ip4Header/4, 0}, uint16(ip4Header+body))
	h = append(append(append(h, 0, 0, 0, 0, hopLimit, byte(s.Protocol), 0, 0), src...), dst...)
	binary.BigEndian.PutUint16(h[10:], internetChecksum(h))
	return h
}

// internetChecksum is RFC 1071's.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 != 0 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Inject sends an IP packet with any addresses to a neighbour: from a pod to its node, or between
// machines on the LAN. It bypasses the firewall rules of h.
func (h *Host) Inject(to *Host, packet []byte) {
	h.t.Helper()
	link, mac, err := h.neighbour(to.machine)
	if err == nil {
		err = h.do(func() error { return sendFrame(link, mac, packet) })
	}
	if err != nil {
		h.t.Fatalf("inject from %s to %s: %v", h.name, to.name, err)
	}
}

// neighbour returns the interface to another machine and the machine's hardware address.
func (h *Host) neighbour(to *machine) (int, net.HardwareAddr, error) {
	var mine, theirs netlink.Link
	var err error
	switch {
	case h.node == to:
		theirs, err = to.link(h.podSide())
	case h.node != nil || to.node != nil:
		return 0, nil, fmt.Errorf("%s and %s are not neighbours", h.name, to.name)
	default:
		theirs, err = to.link(to.lanLink())
	}
	if err != nil {
		return 0, nil, err
	}
	if mine, err = h.link(h.lanLink()); err != nil {
		return 0, nil, err
	}
	return mine.Attrs().Index, theirs.Attrs().HardwareAddr, nil
}

func sendFrame(link int, mac net.HardwareAddr, packet []byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	kind := []byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff}
	if packet[0]>>4 == 6 {
		kind = []byte{unix.ETH_P_IPV6 >> 8, unix.ETH_P_IPV6 & 0xff}
	}
	to := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(kind), Ifindex: link, Halen: uint8(len(mac))}
	copy(to.Addr[:], mac)
	if err := unix.Sendto(fd, packet, 0, to); err != nil {
		return fmt.Errorf("send packet: %w", err)
	}
	return nil
}
