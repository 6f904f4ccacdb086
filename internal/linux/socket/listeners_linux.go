package socket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Listener is a socket that accepts connections or receives datagrams.
type Listener struct {
	Protocol uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	At       netip.AddrPort // an unspecified IPv6 address may stand for both families
	UID      uint32         // of the owner; 65534 if this user namespace does not map it
	Inode    uint64
}

// deadline bounds one answer of the kernel.
const deadline = 10 * time.Second

// Layouts of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
const (
	requestLen    = 56
	answerLen     = 72
	answerPort    = 4
	answerAddress = 8
	answerUID     = 64
	answerInode   = 68
)

// Listeners returns the TCP sockets that listen and the UDP sockets that are bound and not
// connected. The kernel filters out all others, so that the call is cheap.
func (s *Sockets) Listeners(ctx context.Context) ([]Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_INET_DIAG, &netlink.Config{NetNS: s.netns})
	if err != nil {
		return nil, fmt.Errorf("open socket netlink: %w", err)
	}
	defer func() { _ = conn.Close() }() // all replies were read
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for protocol, state := range map[uint8]uint32{
			unix.IPPROTO_TCP: 1 << unix.BPF_TCP_LISTEN,
			unix.IPPROTO_UDP: 1 << unix.BPF_TCP_CLOSE,
		} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			list, err := listeners(conn, family, protocol, state)
			if err != nil {
				return nil, fmt.Errorf("list sockets: %w", err)
			}
			all = append(all, list...)
		}
	}
	return all, nil
}

func listeners(conn *netlink.Conn, family, protocol uint8, states uint32) ([]Listener, error) {
	data := make([]byte, requestLen)
	data[0], data[1] = family, protocol
	binary.NativeEndian.PutUint32(data[4:], states)
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		return nil, err
	}
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: data,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // the kernel cannot list this protocol
	}
	if err != nil {
		return nil, err
	}
	var list []Listener
	for _, m := range answers {
		if l, ok := listener(protocol, m.Data); ok {
			list = append(list, l)
		}
	}
	return list, nil
}

func listener(protocol uint8, b []byte) (Listener, bool) {
	if len(b) < answerLen {
		return Listener{}, false
	}
	size := 4
	if b[0] == unix.AF_INET6 {
		size = 16
	}
	addr, _ := netip.AddrFromSlice(b[answerAddress : answerAddress+size])
	port := binary.BigEndian.Uint16(b[answerPort:])
	return Listener{
		Protocol: protocol, At: netip.AddrPortFrom(addr.Unmap(), port),
		UID: binary.NativeEndian.Uint32(b[answerUID:]), Inode: uint64(binary.NativeEndian.Uint32(b[answerInode:])),
	}, port != 0
}

// UDP reports whether the socket receives datagrams.
func (l Listener) UDP() bool { return l.Protocol == unix.IPPROTO_UDP }
