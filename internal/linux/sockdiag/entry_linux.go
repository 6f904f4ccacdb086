package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Entry is a socket in the list of the kernel: a struct inet_diag_msg.
type Entry []byte

// The structs inet_diag_msg and inet_diag_req_v2 are some bytes, the family first, and the identity of a socket.
const (
	messageSize = 72
	requestSize = 56
	idSize      = 48
	anyState    = 1<<12 - 1
)

// Each calls a function with the sockets of the current network namespace that have a family, a protocol and one of
// some states (bits by number).
func Each(family, protocol uint8, states uint32, do func(Entry)) error {
	list := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	list.AddData(newRequest(family, protocol, states))
	err := list.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
		if len(m) >= messageSize {
			do(m)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list sockets: %w", err)
	}
	return nil
}

// id returns the identity of the socket, a struct inet_diag_sockid.
func (e Entry) id() []byte { return e[4 : 4+idSize] }

// Local returns the address and port of the socket. It unmaps IPv4 addresses.
func (e Entry) Local() netip.AddrPort { return e.endpoint(e.id()[0:], e.id()[4:]) }

// Peer returns the address and port of the peer. It unmaps IPv4 addresses.
func (e Entry) Peer() netip.AddrPort { return e.endpoint(e.id()[2:], e.id()[20:]) }

func (e Entry) endpoint(port, addr []byte) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(addr[:16])).Unmap()
	if e[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(addr[:4]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

// Cookie returns the cookie of the socket, which no other socket has.
func (e Entry) Cookie() uint64 {
	id := e.id()
	return uint64(binary.NativeEndian.Uint32(id[40:])) | uint64(binary.NativeEndian.Uint32(id[44:]))<<32
}

// UID returns the owner of the socket; 65534 if this user namespace does not map it.
func (e Entry) UID() uint32 { return binary.NativeEndian.Uint32(e[64:]) }

// Inode returns the inode number of the socket.
func (e Entry) Inode() uint32 { return binary.NativeEndian.Uint32(e[68:]) }

// request is a struct inet_diag_req_v2.
type request [requestSize]byte

// Len implements nl.NetlinkRequestData.
func (r *request) Len() int { return requestSize }

// Serialize implements nl.NetlinkRequestData.
func (r *request) Serialize() []byte { return r[:] }

func newRequest(family, protocol uint8, states uint32) *request {
	r := &request{family, protocol}
	binary.NativeEndian.PutUint32(r[4:], states)
	return r
}
