package sockdiag

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Listener is a socket that accepts connections or receives datagrams.
type Listener struct {
	Protocol uint8          // unix.IPPROTO_TCP or IPPROTO_UDP
	At       netip.AddrPort // an unspecified IPv6 address may stand for both families
	UID      uint32         // of the owner; 65534 if this user namespace does not map it
	Inode    uint64
}

// UDP reports whether the socket receives datagrams.
func (l Listener) UDP() bool { return l.Protocol == unix.IPPROTO_UDP }

// Listeners returns the TCP sockets of the node that listen, and its UDP sockets that are bound and not connected.
func (n Node) Listeners(ctx context.Context) (all []Listener, err error) {
	err = n.eachFamily(ctx, func(family uint8) error {
		for protocol, states := range map[uint8]uint32{
			unix.IPPROTO_TCP: 1 << unix.BPF_TCP_LISTEN,
			unix.IPPROTO_UDP: 1 << unix.BPF_TCP_CLOSE,
		} {
			if err := each(family, protocol, states, func(m message) {
				if m.local().Port() != 0 {
					all = append(all, Listener{Protocol: protocol, At: m.local(), UID: m.uid(), Inode: m.inode()})
				}
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// Local counts the TCP connections of programs of the node by their local address, with those that are being opened
// or closed.
func (n Node) Local(ctx context.Context) (map[netip.Addr]int, error) {
	out := map[netip.Addr]int{}
	return out, n.eachFamily(ctx, func(family uint8) error {
		return each(family, unix.IPPROTO_TCP, anyState&^unusedStates, func(m message) { out[m.local().Addr()]++ })
	})
}

// eachFamily calls a function for both families in the network namespace of the node.
func (n Node) eachFamily(ctx context.Context, do func(family uint8) error) error {
	return netns.Do(n.NetNS, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			if err := errors.Join(ctx.Err(), do(family)); err != nil {
				return err
			}
		}
		return nil
	})
}
