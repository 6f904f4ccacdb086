// Package sockdiag counts TCP connections, and destroys connected UDP sockets of other processes, in any network namespace (sock_diag(7),
// SOCK_DESTROY).
package sockdiag

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Socket identifies a UDP socket with its peer.
type Socket struct {
	Cookie uint64
	NetNS  uint64 // cookie of its network namespace
	Peer   netip.AddrPort
}

// Result is what Destroy has done. Sockets that are closed, or have another peer by now, are in neither.
type Result struct {
	Destroyed int
	Unreached int // sockets in network namespaces that are gone, or that this process cannot see
}

// Node is a node with its network namespaces.
type Node struct {
	NetNS int // file descriptor of the network namespace of the node; 0: the current one
}

// Destroy destroys the sockets that have their peer still. It visits only the namespaces that these are in. Their programs get
// ECONNABORTED.
func (n Node) Destroy(ctx context.Context, list []Socket) (result Result, err error) {
	wanted := map[uint64]map[uint64]netip.AddrPort{} // peers by namespace and cookie
	for _, s := range list {
		if wanted[s.NetNS] == nil {
			wanted[s.NetNS] = map[uint64]netip.AddrPort{}
		}
		wanted[s.NetNS][s.Cookie] = s.Peer
	}
	var failed []error
	visit := func(cookie uint64) {
		sockets, is := wanted[cookie]
		if !is || ctx.Err() != nil {
			return
		}
		delete(wanted, cookie)
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			destroyed, err := destroy(family, sockets)
			result.Destroyed += destroyed
			failed = append(failed, err)
		}
	}
	paths := []netns.Paths{netns.OfProcesses, netns.OfMounts, netns.OfThreads}
	failed = append(failed, netns.Visit(n.NetNS, paths, func() bool { return len(wanted) == 0 || ctx.Err() != nil }, visit))
	for _, sockets := range wanted {
		result.Unreached += len(sockets)
	}
	return result, errors.Join(append(failed, ctx.Err())...)
}

// message and request are the structs inet_diag_msg and inet_diag_req_v2: four bytes, the state in the former, then
// the identity of a socket.
const (
	messageSize = 72
	requestSize = 56
	idSize      = 48
	anyState    = 1<<12 - 1
)

// The states of connections that both sides use: ESTABLISHED, SYN_SENT and CLOSE_WAIT.
const openStates = 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_CLOSE_WAIT

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

// destroy destroys sockets of the current network namespace that have a family, and returns how many.
func destroy(family uint8, want map[uint64]netip.AddrPort) (n int, err error) {
	list := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	list.AddData(newRequest(family, unix.IPPROTO_UDP, anyState))
	var found []*request
	err = list.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
		if len(m) < messageSize {
			return true
		}
		id := m[4 : 4+idSize]
		if peer, is := want[cookieOf(id)]; is && peer == peerOf(family, id) {
			r := newRequest(family, unix.IPPROTO_UDP, anyState)
			copy(r[8:], id)
			found = append(found, r)
		}
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("list sockets: %w", err)
	}
	return destroyFound(found)
}

// mostRounds bounds the attempts of destroyFound: it destroys so many sockets that have the same addresses and ports.
const mostRounds = 16

// destroyFound destroys sockets, and returns how many. The kernel finds a socket by its addresses and ports, and then compares the cookie. So
// of several sockets that share them it finds one, until that is destroyed.
func destroyFound(found []*request) (n int, err error) {
	var failed []error
	for range mostRounds {
		before := n
		found = slices.DeleteFunc(found, func(r *request) bool {
			kill := nl.NewNetlinkRequest(unix.SOCK_DESTROY, unix.NLM_F_ACK)
			kill.AddData(r)
			_, err := kill.Execute(unix.NETLINK_INET_DIAG, 0)
			switch {
			case err == nil:
				n++
			case errors.Is(err, unix.ENOENT): // it is closed, or another one is found
				return false
			default:
				failed = append(failed, fmt.Errorf("destroy a socket: %w", err))
			}
			return true
		})
		if n == before {
			break
		}
	}
	return n, errors.Join(failed...)
}

func cookieOf(id []byte) uint64 {
	return uint64(binary.NativeEndian.Uint32(id[40:])) | uint64(binary.NativeEndian.Uint32(id[44:]))<<32
}

func peerOf(family uint8, id []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(id[2:])
	if family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(id[20:24])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(id[20:36])).Unmap(), port)
}

// Try finds out whether this kernel destroys UDP sockets: it makes one in the network namespace of the node, and destroys it.
func (n Node) Try(ctx context.Context) error {
	return netns.Do(n.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // it was made for this
		s, err := connectToItself(fd)
		if err != nil {
			return err
		}
		r, err := n.Destroy(ctx, []Socket{s})
		if err == nil && r.Destroyed != 1 {
			err = errors.New("the kernel does not find it")
		}
		if err != nil {
			return fmt.Errorf("destroy a socket: %w", err)
		}
		return nil
	})
}

// connectToItself connects a socket to its own address.
func connectToItself(fd int) (Socket, error) {
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return Socket{}, err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return Socket{}, err
	}
	if err := unix.Connect(fd, at); err != nil {
		return Socket{}, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return Socket{}, err
	}
	ns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	peer := at.(*unix.SockaddrInet4)
	return Socket{cookie, ns, netip.AddrPortFrom(netip.AddrFrom4(peer.Addr), uint16(peer.Port))}, err
}
