// Package socket counts TCP connections of programs of this host, and lists their
// listeners.
package socket

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Sockets are those of one network namespace. A socket is open only during a call.
type Sockets struct{ netns int }

// New returns access to the sockets of the network namespace of a file descriptor; 0: the
// current one.
func New(netns int) *Sockets { return &Sockets{netns} }

// Connections returns the number of TCP connections, including those that are being
// opened, by local address.
func (s *Sockets) Connections(ctx context.Context) (map[netip.Addr]int, error) {
	h, err := netns.Handle(s.netns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open socket netlink: %w", err)
	}
	defer h.Close()
	out := map[netip.Addr]int{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := netns.List(ctx, func() ([]*netlink.Socket, error) { return h.SocketDiagTCP(family) })
		if err != nil {
			return nil, fmt.Errorf("list TCP sockets: %w", err)
		}
		for _, one := range list {
			if a, ok := netip.AddrFromSlice(one.ID.Source); ok && isConnection(one.State) {
				out[a.Unmap()]++
			}
		}
	}
	return out, nil
}

// isConnection reports whether a socket is a connection, neither a listener nor
// closed.
func isConnection(state uint8) bool {
	return !slices.Contains([]uint8{unix.BPF_TCP_LISTEN, unix.BPF_TCP_TIME_WAIT, unix.BPF_TCP_CLOSE}, state)
}
