package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sets of states.
const (
	anyState = 1<<12 - 1

	// openStates are those of connections that both sides use.
	openStates = 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_CLOSE_WAIT

	// unusedStates are those of sockets that are no connections: listeners, and what is left of closed ones.
	unusedStates = 1<<unix.BPF_TCP_LISTEN | 1<<unix.BPF_TCP_TIME_WAIT | 1<<unix.BPF_TCP_CLOSE
)

// Offsets in struct inet_diag_msg and the size of its struct inet_diag_sockid (linux/inet_diag.h).
const (
	messageSize = 72
	atID        = 4
	idSize      = 48
	atUID       = 64
	atInode     = 68
)

// request is a struct inet_diag_req_v2: 8 bytes, then the identity of a socket.
type request [8 + idSize]byte

func newRequest(family, protocol uint8, states uint32) *request {
	r := &request{family, protocol}
	binary.NativeEndian.PutUint32(r[4:], states)
	return r
}

// of sets the socket of a message.
func (r *request) of(m message) *request {
	copy(r[8:], m[atID:atID+idSize])
	return r
}

// message is a struct inet_diag_msg.
type message []byte

func (m message) family() uint8 { return m[0] }

func (m message) cookie() uint64 {
	return uint64(binary.NativeEndian.Uint32(m[atID+40:])) | uint64(binary.NativeEndian.Uint32(m[atID+44:]))<<32
}

func (m message) local() netip.AddrPort { return m.address(atID, atID+4) }
func (m message) peer() netip.AddrPort  { return m.address(atID+2, atID+20) }

// address returns the port and the address at two offsets. An IPv4 address of an IPv6 socket is an IPv4 address.
func (m message) address(port, addr int) netip.AddrPort {
	size := 4
	if m.family() == unix.AF_INET6 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(m[addr : addr+size]) // of a valid size
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(m[port:]))
}

func (m message) uid() uint32   { return binary.NativeEndian.Uint32(m[atUID:]) }
func (m message) inode() uint64 { return uint64(binary.NativeEndian.Uint32(m[atInode:])) }

// each calls a function with each socket of the current network namespace, of both families, that has a protocol and
// one of some states. The kernel filters out all others. A message is valid during the call. An error in one family
// does not leave out the other.
func each(protocol uint8, states uint32, found func(message)) error {
	var failed []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		list.AddRawData(newRequest(family, protocol, states)[:])
		err := list.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
			if len(m) >= messageSize {
				found(m)
			}
			return true
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: the kernel cannot list this protocol
			failed = append(failed, fmt.Errorf("list sockets: %w", err))
		}
	}
	return errors.Join(failed...)
}
