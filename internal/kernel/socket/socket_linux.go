// Package socket counts the TCP connections that programs of this host have, and
// lists their listeners.
package socket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// attempts is how often a listing is tried when it changes meanwhile.
const attempts = 10

// Options for New.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Sockets are those of one network namespace. A socket is open only during a call.
type Sockets struct{ opts Options }

// New returns access to the sockets.
func New(opts Options) *Sockets { return &Sockets{opts: opts} }

// Connections returns how many TCP connections, and attempts at one, there are
// for each local address that has any.
func (s *Sockets) Connections(ctx context.Context) (map[netip.Addr]int, error) {
	h, err := netns.Handle(s.opts.NetNS, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open socket netlink: %w", err)
	}
	defer h.Close()
	out := map[netip.Addr]int{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := list(ctx, h, family)
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

func list(ctx context.Context, h *netlink.Handle, family uint8) ([]*netlink.Socket, error) {
	var list []*netlink.Socket
	var err error
	for range attempts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list, err = h.SocketDiagTCP(family)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// isConnection reports whether a socket is a connection, neither a listener nor
// closed.
func isConnection(state uint8) bool {
	return !slices.Contains([]uint8{unix.BPF_TCP_LISTEN, unix.BPF_TCP_TIME_WAIT, unix.BPF_TCP_CLOSE}, state)
}
