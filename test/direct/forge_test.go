//go:build linux

package direct

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Flags of TCP.
const syn, ack = 0x02, 0x10

// forge sends a TCP segment with any source to port 80 of an address, through the router.
func (r *rig) forge(source netip.AddrPort, to netip.Addr, flags, hops byte) {
	r.Helper()
	r.must(r.lab.Outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // all was sent
		return unix.Sendto(fd, forged(source, to, flags, hops), 0, &unix.SockaddrInet4{Addr: to.As4()})
	}))
}

// forged returns a TCP segment to port 80.
func forged(source netip.AddrPort, to netip.Addr, flags, hops byte) []byte {
	segment := binary.BigEndian.AppendUint16(nil, source.Port())
	segment = binary.BigEndian.AppendUint16(segment, 80)
	segment = append(segment, 0, 0, 0, 9, 0, 0, 0, 9, 5<<4, flags, 1, 0, 0, 0, 0, 0)
	pseudo := append(append(append([]byte{}, source.Addr().AsSlice()...), to.AsSlice()...), 0, unix.IPPROTO_TCP, 0, 20)
	binary.BigEndian.PutUint16(segment[16:], harness.Checksum(append(pseudo, segment...)))
	header := append([]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, hops, unix.IPPROTO_TCP, 0, 0}, source.Addr().AsSlice()...)
	header = append(header, to.AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], harness.Checksum(header))
	return append(header, segment...)
}

// taps see what nodes receive.
type taps struct {
	*rig
	taps []*lab.Tap
}

func (r *rig) tap() (t taps) {
	r.Helper()
	t.rig = r
	for _, n := range r.nodes {
		t.taps = append(t.taps, n.Tap())
	}
	return t
}

// received returns how many packets to the address of the Service nodes have received from a client: at least so many,
// for which it waits.
func (t taps) received(client netip.Addr, least int) int {
	t.Helper()
	count := func() (n int) {
		for _, tap := range t.taps {
			n += tap.Count(func(p lab.Packet) bool {
				return !p.Out && p.Src.Addr() == client && p.Dst.Addr() == netip.MustParseAddr(vip4)
			})
		}
		return n
	}
	harness.Eventually(t, timeout, func() error {
		if n := count(); n < least {
			return fmt.Errorf("nodes have received %d packets, want %d", n, least)
		}
		return nil
	})
	t.flows(1, lab.TCP, vip4).end() // most of what nodes pass on has arrived when a later connection is served
	return count()
}

// neighbour is a host in the network of the nodes that forwards nothing.
func (r *rig) neighbour() *lab.Host {
	r.Helper()
	h := r.lab.Node("neighbour", "192.168.0.66", "2001:db8::66")
	h.MustRun("sysctl", "-qw", "net.ipv4.ip_forward=0")
	return h
}

// frames sends frames from a host at once, with any source.
func (r *rig) frames(from *lab.Host, ends [2]net.HardwareAddr, protocol uint16, payloads ...[]byte) {
	r.Helper()
	r.must(from.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // all was sent
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		header := binary.BigEndian.AppendUint16(append(slices.Clone(ends[1]), ends[0]...), protocol)
		to := &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}
		for _, payload := range payloads {
			if err := unix.Sendto(fd, slices.Concat(header, payload), 0, to); err != nil {
				return err
			}
		}
		return nil
	}))
}

// mac returns the hardware address of a host on a device.
func (r *rig) mac(h *lab.Host, device string) (mac net.HardwareAddr) {
	r.Helper()
	r.must(h.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}))
	return mac
}

// claim tells a node by ARP that an address belongs to a hardware address.
func (r *rig) claim(from, at *lab.Host, addr netip.Addr, mac net.HardwareAddr) {
	r.Helper()
	reply := append(append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, mac...), addr.AsSlice()...)
	reply = append(append(reply, r.mac(at, "eth0")...), at.Addr4().AsSlice()...)
	r.frames(from, [2]net.HardwareAddr{r.mac(from, "eth0"), r.mac(at, "eth0")}, unix.ETH_P_ARP, reply)
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
