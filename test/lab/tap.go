//go:build linux

package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Packet is a captured packet. Ports are 0 for protocols without ports.
type Packet struct {
	Out      bool // outgoing; otherwise incoming
	Link     int  // index of the interface
	Protocol Protocol
	Src, Dst netip.AddrPort
	Length   int // with the IP header
	Data     []byte
}

// String returns the packet as one line.
func (p Packet) String() string {
	way := "in"
	if p.Out {
		way = "out"
	}
	return fmt.Sprintf("%s %d %s > %s, %d bytes", way, p.Protocol, p.Src, p.Dst, p.Length)
}

// Tap captures every IP packet on the interfaces of a machine.
type Tap struct {
	raw  syscall.RawConn
	mu   sync.Mutex
	seen []Packet
}

// tapBuffer is the size of the buffer of a Tap, in bytes: some ten thousand packets.
const tapBuffer = 16 << 20

// Tap captures packets on the host's interfaces until the test ends.
func (h *Host) Tap() *Tap {
	h.t.Helper()
	fd := -1
	err := h.do(func() error {
		var err error
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})) // in network order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		if err != nil {
			return err
		}
		// The kernel drops what a busy machine does not read in time. Only root of the machine may force the size.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tapBuffer)
		return nil
	})
	if err != nil {
		h.t.Fatalf("tap %s: %v", h.name, err)
	}
	file := os.NewFile(uintptr(fd), "tap")
	raw, err := file.SyscallConn()
	if err != nil {
		h.t.Fatalf("tap %s: %v", h.name, err)
	}
	t := &Tap{raw: raw}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = raw.Read(func(fd uintptr) bool { // ends when the file is closed
			t.mu.Lock()
			defer t.mu.Unlock()
			t.drain(int(fd))
			return false
		})
	}()
	h.onClose(func() {
		_ = file.Close()
		<-done
	})
	return t
}

// drain reads the captured packets. The caller holds the lock.
func (t *Tap) drain(fd int) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		p, ok := parsePacket(slices.Clone(b[:n]))
		if !ok {
			continue
		}
		p.Out, p.Link = link.Pkttype == unix.PACKET_OUTGOING, link.Ifindex
		t.seen = append(t.seen, p)
	}
}

// Packets returns the packets captured so far, including all that were sent before the call.
func (t *Tap) Packets() []Packet {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.raw.Control(func(fd uintptr) { t.drain(int(fd)) }) // an error means that the tap is closed
	return slices.Clone(t.seen)
}

// Count returns how many captured packets match.
func (t *Tap) Count(wanted func(Packet) bool) int {
	n := 0
	for _, p := range t.Packets() {
		if wanted(p) {
			n++
		}
	}
	return n
}

// Reset discards the captured packets.
func (t *Tap) Reset() {
	t.Packets()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = nil
}

// parsePacket parses an IP packet's header and ports.
func parsePacket(b []byte) (Packet, bool) {
	p := Packet{Length: len(b), Data: b}
	var src, dst netip.Addr
	var rest []byte
	first := true // only the first fragment has ports
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && len(b) >= int(b[0]&15)*4:
		p.Protocol = Protocol(b[9])
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		first, rest = binary.BigEndian.Uint16(b[6:])&0x1fff == 0, b[int(b[0]&15)*4:]
	case len(b) >= 40 && b[0]>>4 == 6:
		p.Protocol = Protocol(b[6])
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		rest = b[40:]
	default:
		return p, false
	}
	var sport, dport uint16
	ported := p.Protocol == TCP || p.Protocol == UDP || p.Protocol == SCTP
	if ported && first && len(rest) >= 4 {
		sport, dport = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p, true
}
