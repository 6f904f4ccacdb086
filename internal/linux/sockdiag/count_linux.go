package sockdiag

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Connections are numbers of open TCP connections, by peer and by the cookie of the network namespace of the client, which is
// OfNode for the node.
type Connections map[netip.AddrPort]map[uint64]int

// OfNode stands for the network namespace of the node.
const OfNode = 0

// Count counts the open TCP connections of all network namespaces that this process can enter, to some peers. It takes some 0.1 ms for each
// namespace, and 1 ms for 1,000 connections.
func (n Node) Count(ctx context.Context, isPeer func(netip.AddrPort) bool) (Connections, error) {
	all := Connections{}
	var failed []error
	first := true
	visit := func(cookie uint64) {
		if first { // that of the node
			cookie, first = OfNode, false
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			failed = append(failed, count(family, func(peer netip.AddrPort) {
				if !isPeer(peer) {
					return
				}
				if all[peer] == nil {
					all[peer] = map[uint64]int{}
				}
				all[peer][cookie]++
			}))
		}
	}
	failed = append(failed, netns.Visit(n.NetNS, []netns.Paths{netns.OfProcesses, netns.OfMounts}, func() bool { return ctx.Err() != nil }, visit), ctx.Err())
	return all, errors.Join(failed...)
}

// count calls a function with the peer of each open TCP connection of the current network namespace.
func count(family uint8, found func(netip.AddrPort)) error {
	list := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	list.AddData(newRequest(family, unix.IPPROTO_TCP, openStates))
	err := list.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
		if len(m) >= messageSize {
			found(peerOf(family, m[4:4+idSize]))
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}
