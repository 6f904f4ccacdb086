// Package socket counts TCP connections of programs of this host, and lists their
// listeners.
package socket

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
)

// Sockets are those of one network namespace. A socket is open only during a call.
type Sockets struct{ netns int }

// New returns access to the sockets of the network namespace of a file descriptor; 0: the
// current one.
func New(netns int) *Sockets { return &Sockets{netns} }

// The states of sockets: TCP that listens, UDP without a peer, and TCP connections, including those that are being
// opened.
const (
	listening   = 1 << unix.BPF_TCP_LISTEN
	unconnected = 1 << unix.BPF_TCP_CLOSE
	connected   = 1<<unix.BPF_TCP_NEW_SYN_RECV - 1 - listening - unconnected - 1<<unix.BPF_TCP_TIME_WAIT
)

// Connections returns the number of TCP connections, including those that are being
// opened, by local address.
func (s *Sockets) Connections(ctx context.Context) (map[netip.Addr]int, error) {
	out := map[netip.Addr]int{}
	err := s.each(ctx, unix.IPPROTO_TCP, connected, func(e sockdiag.Entry) { out[e.Local().Addr()]++ })
	return out, err
}

// Listener is a socket that accepts connections or receives datagrams.
type Listener struct {
	Protocol uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	At       netip.AddrPort // an unspecified IPv6 address may stand for both families
	UID      uint32         // of the owner; 65534 if this user namespace does not map it
	Inode    uint64
}

// UDP reports whether the socket receives datagrams.
func (l Listener) UDP() bool { return l.Protocol == unix.IPPROTO_UDP }

// Listeners returns the TCP sockets that listen and the UDP sockets that are bound and not
// connected. The kernel filters out all others, so that the call is cheap.
func (s *Sockets) Listeners(ctx context.Context) (all []Listener, err error) {
	for protocol, states := range map[uint8]uint32{unix.IPPROTO_TCP: listening, unix.IPPROTO_UDP: unconnected} {
		err := s.each(ctx, protocol, states, func(e sockdiag.Entry) {
			if at := e.Local(); at.Port() != 0 {
				all = append(all, Listener{protocol, at, e.UID(), uint64(e.Inode())})
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // the kernel cannot list this protocol
			return nil, err
		}
	}
	return all, nil
}

// each calls a function with the sockets of both families that have a protocol and one of some states.
func (s *Sockets) each(ctx context.Context, protocol uint8, states uint32, do func(sockdiag.Entry)) error {
	return netns.Do(s.netns, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			if err := errors.Join(ctx.Err(), sockdiag.Each(family, protocol, states, do)); err != nil {
				return err
			}
		}
		return nil
	})
}
