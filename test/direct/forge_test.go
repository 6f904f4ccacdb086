//go:build linux

package direct

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Flags of TCP.
const syn, ack = 0x02, 0x10

// forge sends a TCP segment with any source to port 80 of an address, through the router.
func (r *rig) forge(source netip.AddrPort, to netip.Addr, flags, hops byte) {
	r.Helper()
	segment := binary.BigEndian.AppendUint16(nil, source.Port())
	segment = binary.BigEndian.AppendUint16(segment, 80)
	segment = append(segment, 0, 0, 0, 9, 0, 0, 0, 9, 5<<4, flags, 1, 0, 0, 0, 0, 0)
	pseudo := append(append(append([]byte{}, source.Addr().AsSlice()...), to.AsSlice()...), 0, unix.IPPROTO_TCP, 0, 20)
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	packet := append([]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, hops, unix.IPPROTO_TCP, 0, 0}, source.Addr().AsSlice()...)
	packet = append(append(packet, to.AsSlice()...), segment...) // the kernel adds the checksum of the header
	r.must(r.lab.Outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // all was sent
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
	}))
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// received returns how many packets all nodes have received from the network.
func (r *rig) received() (sum int) {
	r.Helper()
	for _, n := range r.nodes {
		sum += r.receivedAt(n, "eth0")
	}
	return sum
}

// receivedAt returns how many packets a device has received.
func (r *rig) receivedAt(n *lab.Host, device string) int {
	r.Helper()
	text := n.MustRun("cat", "/proc/net/dev")
	_, rest, _ := strings.Cut(text, device+":")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		r.Fatal(fmt.Errorf("no %s in %s", device, text))
	}
	packets, err := strconv.Atoi(fields[1])
	r.must(err)
	return packets
}
