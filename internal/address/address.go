// Package address watches the addresses of this host's interfaces, of both
// families, loopback ones included and link-local ones not.
package address

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// OfSockets returns the addresses of the loopback interface at which sockets of this program listen, one
// for each family, the same on every host: a link-local one, and one of a private range (RFC 4193). They
// belong to the program, not to the host.
func OfSockets() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 73, 1}), netip.MustParseAddr("fd73:6c75:6963:65::1")}
}

// Options for New.
type Options struct {
	NetNS  int    // file descriptor of a network namespace; 0: the current one
	Except string // name of an interface whose addresses are left out, on Linux; "": none
}

// Watcher watches the addresses of one network namespace.
type Watcher struct{ opts Options }

// New returns a Watcher. It does nothing until Run.
func New(opts Options) *Watcher { return &Watcher{opts: opts} }

// update returns a function that lists the addresses, and calls fn at first, and whenever they differ.
func (w *Watcher) update(ctx context.Context, fn func([]netip.Addr)) func() error {
	var last []netip.Addr // nil: not listed yet
	return func() error {
		now, err := w.List(ctx)
		if err == nil && (last == nil || !slices.Equal(last, now)) {
			last = now
			fn(slices.Clone(now))
		}
		return err
	}
}

// canonical sorts addresses, and leaves out duplicates and link-local ones.
func canonical(addrs []netip.Addr) []netip.Addr {
	addrs = slices.DeleteFunc(addrs, netip.Addr.IsLinkLocalUnicast)
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// Primary returns the primary address of this host in each family: the source address of the default route, or
// without such a route the first that is not loopback. It sends no packet.
func (w *Watcher) Primary() (primary []netip.Addr, err error) {
	all, err := w.List(context.Background())
	if err != nil {
		return nil, err
	}
	err = netns.Do(w.opts.NetNS, func() error {
		// No network uses the addresses for documentation (RFC 5737, RFC 3849).
		for _, outside := range []string{"192.0.2.1", "2001:db8:ffff:ffff::1"} {
			remote := netip.MustParseAddr(outside)
			a := source(remote)
			if !a.IsValid() {
				a = first(all, remote)
			}
			if a.IsValid() {
				primary = append(primary, a)
			}
		}
		return nil
	})
	return primary, err
}

// source returns the source address of packets to an address; invalid if there is no route, or only one that drops
// packets.
func source(remote netip.Addr) netip.Addr {
	const discard = 9
	// UDP: this connects and sends nothing.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, discard)))
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	a := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	if a.Is4() != remote.Is4() || a.IsLoopback() {
		return netip.Addr{}
	}
	return a
}

func first(all []netip.Addr, like netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == like.Is4() && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// HardwareAddr returns the MAC address of the interface of this host that has an address, as "00:15:5d:00:00:01".
func (*Watcher) HardwareAddr(of netip.Addr) (string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			return "", fmt.Errorf("list the addresses of %s: %w", link.Name, err)
		}
		has := func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().WithZone("") == of
		}
		if slices.ContainsFunc(addrs, has) && len(link.HardwareAddr) > 0 {
			return link.HardwareAddr.String(), nil
		}
	}
	return "", fmt.Errorf("no interface with a MAC address has the address %s", of)
}
