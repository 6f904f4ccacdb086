// Package sockdiag counts TCP connections, lists listeners, and destroys connected UDP sockets of other processes, in
// any network namespace (sock_diag(7), SOCK_DESTROY).
package sockdiag

import (
	"context"
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

// Destroy destroys the sockets that have their peer still. It visits only the namespaces that these are in. Their
// programs get ECONNABORTED.
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
		destroyed, err := destroy(sockets)
		result.Destroyed += destroyed
		failed = append(failed, err)
	}
	paths := []netns.Paths{netns.OfProcesses, netns.OfMounts, netns.OfThreads}
	done := func() bool { return len(wanted) == 0 || ctx.Err() != nil }
	failed = append(failed, netns.Visit(n.NetNS, paths, done, visit))
	for _, sockets := range wanted {
		result.Unreached += len(sockets)
	}
	return result, errors.Join(append(failed, ctx.Err())...)
}

// destroy destroys sockets of the current network namespace, and returns how many.
func destroy(want map[uint64]netip.AddrPort) (n int, err error) {
	var found []*request
	listErr := each(unix.IPPROTO_UDP, anyState, func(m message) {
		if peer, is := want[m.cookie()]; is && peer == m.peer() {
			found = append(found, newRequest(m.family(), unix.IPPROTO_UDP, anyState).of(m))
		}
	})
	n, err = destroyFound(found)
	return n, errors.Join(listErr, err)
}

// mostRounds bounds the attempts of destroyFound: it destroys so many sockets that have the same addresses and ports.
const mostRounds = 16

// destroyFound destroys sockets, and returns how many. The kernel finds a socket by its addresses and ports, and then
// compares the cookie. So of several sockets that share them it finds one, until that is destroyed.
func destroyFound(found []*request) (n int, err error) {
	var failed []error
	for range mostRounds {
		before := n
		found = slices.DeleteFunc(found, func(r *request) bool {
			switch err := kill(r); {
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

// Try returns an error unless this kernel lists and destroys UDP sockets: it asks for the destruction of none.
func (n Node) Try() error {
	return netns.Do(n.NetNS, func() error {
		if err := each(unix.IPPROTO_UDP, anyState, func(message) {}); err != nil {
			return err
		}
		if err := kill(newRequest(unix.AF_INET, unix.IPPROTO_UDP, anyState)); !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("destroy a socket: %w", err)
		}
		return nil
	})
}

// kill destroys a socket. The error is ENOENT if the kernel finds none.
func kill(r *request) error {
	kill := nl.NewNetlinkRequest(unix.SOCK_DESTROY, unix.NLM_F_ACK)
	kill.AddRawData(r[:])
	_, err := kill.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}
