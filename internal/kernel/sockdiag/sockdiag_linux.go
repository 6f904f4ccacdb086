// Package sockdiag destroys connected sockets of other processes, in any network namespace (SOCK_DESTROY).
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

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Socket identifies a socket with its peer.
type Socket struct {
	Cookie   uint64
	NetNS    uint64 // cookie of its network namespace
	Protocol uint8  // TCP or UDP
	Peer     netip.AddrPort
}

// Result is what Destroy has done. Sockets that are closed, or have another peer by now, are in neither.
type Result struct {
	Destroyed map[uint8]int // by protocol
	Unreached int           // sockets in network namespaces that are gone, or that this process cannot see
}

// Destroyer destroys sockets.
type Destroyer struct {
	Node int // file descriptor of the network namespace of the node; 0: the current one
}

// Destroy destroys the sockets that have their peer still. It visits only the namespaces that these are in. Their programs get
// ECONNABORTED.
func (d Destroyer) Destroy(ctx context.Context, list []Socket) (Result, error) {
	result := Result{Destroyed: map[uint8]int{}}
	wanted := map[uint64][]Socket{}
	for _, s := range list {
		wanted[s.NetNS] = append(wanted[s.NetNS], s)
	}
	var failed []error
	visit := func(cookie uint64) {
		sockets, is := wanted[cookie]
		if !is || ctx.Err() != nil {
			return
		}
		delete(wanted, cookie)
		failed = append(failed, destroy(sockets, result.Destroyed))
	}
	if err := d.visit(func() bool { return len(wanted) == 0 || ctx.Err() != nil }, visit); err != nil {
		failed = append(failed, err)
	}
	for _, sockets := range wanted {
		result.Unreached += len(sockets)
	}
	return result, errors.Join(append(failed, ctx.Err())...)
}

// destroy destroys sockets of the current network namespace.
func destroy(list []Socket, count map[uint8]int) error {
	var failed []error
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		want := map[uint64]netip.AddrPort{}
		for _, s := range list {
			if s.Protocol == protocol {
				want[s.Cookie] = s.Peer
			}
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			if len(want) == 0 {
				break
			}
			n, err := destroyOf(family, protocol, want)
			count[protocol] += n
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// message and request are the structs inet_diag_msg and inet_diag_req_v2: four bytes, the state in the former, then
// the identity of a socket.
const (
	messageSize = 72
	requestSize = 56
	idSize      = 48
	anyState    = 1<<12 - 1
)

// request is a struct inet_diag_req_v2.
type request [requestSize]byte

// Len implements nl.NetlinkRequestData.
func (r *request) Len() int { return requestSize }

// Serialize implements nl.NetlinkRequestData.
func (r *request) Serialize() []byte { return r[:] }

func newRequest(family, protocol uint8) *request {
	r := &request{family, protocol}
	binary.NativeEndian.PutUint32(r[4:], anyState)
	return r
}

// destroyOf destroys sockets of a family and a protocol, and returns how many.
func destroyOf(family, protocol uint8, want map[uint64]netip.AddrPort) (n int, err error) {
	list := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	list.AddData(newRequest(family, protocol))
	var found []*request
	err = list.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
		if len(m) < messageSize {
			return true
		}
		id := m[4 : 4+idSize]
		if peer, is := want[cookieOf(id)]; is && peer == peerOf(family, id) {
			r := newRequest(family, protocol)
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

// Try finds out whether this kernel destroys sockets of UDP and TCP: it makes one of each in the network namespace of the node,
// and destroys them.
func (d Destroyer) Try(ctx context.Context) error {
	return netns.Do(d.Node, func() error {
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
			if err := d.try(ctx, kind); err != nil {
				return err
			}
		}
		return nil
	})
}

// try makes a socket that is connected to itself, in the namespace of the thread.
func (d Destroyer) try(ctx context.Context, kind int) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it was made for this
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, at); err != nil { // TCP connects to itself as well
		return err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return err
	}
	ns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return err
	}
	protocol := map[int]uint8{unix.SOCK_DGRAM: unix.IPPROTO_UDP, unix.SOCK_STREAM: unix.IPPROTO_TCP}[kind]
	peer := at.(*unix.SockaddrInet4)
	r, err := d.Destroy(ctx, []Socket{{cookie, ns, protocol, netip.AddrPortFrom(netip.AddrFrom4(peer.Addr), uint16(peer.Port))}})
	if err == nil && r.Destroyed[protocol] != 1 {
		err = errors.New("the kernel does not find it")
	}
	if err != nil {
		return fmt.Errorf("destroy a socket of protocol %d: %w", protocol, err)
	}
	return nil
}
