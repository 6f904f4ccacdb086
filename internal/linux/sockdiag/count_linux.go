package sockdiag

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Connections are numbers of open TCP connections, by peer and by the cookie of the network namespace of the client,
// which is OfNode for the node.
type Connections map[netip.AddrPort]map[uint64]int

// OfNode stands for the network namespace of the node.
const OfNode = 0

// Count counts the open TCP connections of all network namespaces that this process can enter, to some peers. It takes
// some 0.1 ms for each namespace, and 1 ms for 1,000 connections.
func (n Node) Count(ctx context.Context, isPeer func(netip.AddrPort) bool) (Connections, error) {
	all := Connections{}
	var failed []error
	first := true
	visit := func(cookie uint64) {
		if first { // that of the node
			cookie, first = OfNode, false
		}
		failed = append(failed, each(unix.IPPROTO_TCP, openStates, func(m message) {
			peer := m.peer()
			if !isPeer(peer) {
				return
			}
			if all[peer] == nil {
				all[peer] = map[uint64]int{}
			}
			all[peer][cookie]++
		}))
	}
	paths := []netns.Paths{netns.OfProcesses, netns.OfMounts}
	failed = append(failed, netns.Visit(n.NetNS, paths, func() bool { return ctx.Err() != nil }, visit), ctx.Err())
	return all, errors.Join(failed...)
}
