//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane"
	planeiptables "github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// served is the userspace plane with the engine that opens its sockets.
type served struct {
	*userspace.Plane
	end func() error
}

// Close closes the sockets.
func (s served) Close() error { return s.end() }

// serve opens the plane on an engine that runs until it is closed. The limit of file descriptors alone limits its
// sockets.
func serve(opt userspace.Options) (plane.Plane, error) {
	const many = 1 << 20
	engine, err := relay.New(relay.Options{MaxListeners: many})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	opt.Ports = userspace.PortRange{First: 33000, Last: 49151} // the default of the program
	return served{userspace.New(userspace.ListenBy(engine), opt), func() error {
		cancel()
		return <-ended
	}}, nil
}

// openLoopback opens the plane with sockets at loopback addresses.
func openLoopback(string, []route.Family) (plane.Plane, plane.Load, error) {
	p, err := serve(userspace.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}})
	return p, plane.Load{}, err
}

// openWithRules opens the plane with the rules that lead clients to its sockets.
func openWithRules(dir string, families []route.Family) (plane.Plane, plane.Load, error) {
	if err := rtnl.New(0).AddHidden(context.Background(), "lo", address.OfSockets()); err != nil {
		return nil, plane.Load{}, err
	}
	tools, err := openTools(iptables.NFT, dir)
	if err != nil {
		return nil, plane.Load{}, err
	}
	rules := planeiptables.New(tools, planeiptables.Options{
		Families: families, Mark: mark, Listeners: address.OfSockets(),
	})
	p, err := serve(userspace.Options{Addrs: address.OfSockets(), Rules: rules})
	return p, plane.Load{}, err
}

// openFiles returns how many file descriptors this process has.
func openFiles() (int, error) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, fmt.Errorf("count file descriptors: %w", err)
	}
	return len(list), nil
}
