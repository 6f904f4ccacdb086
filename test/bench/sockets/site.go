//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/sluice-proxy/sluice/internal/route"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/test/lab"
)

const masqueradeMark = 1 << 14

// Names of the ways from the client to the backend.
const (
	direct   = "direct"
	attached = "direct, programs attached"
	sockets  = "ebpf"
	packets  = "nftables"
)

func wayNames() []string { return []string{direct, attached, sockets, packets} }

// Ports of the backend: each side has its own, so that sockets of the backend and of the client are in the same cgroup.
const (
	outsidePort = 8080
	insidePort  = 8081
)

// side are the threads and the listening sockets of the client and the backend in one cgroup.
type side struct {
	client, server      func(func() error) error
	listener, datagrams int // file descriptors
}

// way is a side and where its client connects to.
type way struct {
	name string
	*side
	to netip.AddrPort // of TCP and UDP
}

// site is a node with both planes, and all ways.
type site struct {
	*pipeline
	kernel *bpf.Conn
	client *lab.Host
	ways   []way
}

// newSite makes a node with n Services in a lab.
func newSite(t lab.T, n int) (*site, error) {
	l := lab.New(t, lab.Options{Cgroups: true})
	backend, client := l.Pod(l.NodeA, backendAddr), l.Pod(l.NodeA, clientAddr)
	inside, err := newSide(t, l.NodeA.Cgroup(), [2]*lab.Host{client, backend}, insidePort)
	if err != nil {
		return nil, err
	}
	outside, err := newSide(t, lab.Cgroup(t), [2]*lab.Host{client, backend}, outsidePort)
	if err != nil {
		return nil, err
	}
	s := &site{client: client}
	address := netip.MustParseAddr(backendAddr)
	s.ways = []way{
		{direct, outside, netip.AddrPortFrom(address, outsidePort)},
		{attached, inside, netip.AddrPortFrom(address, insidePort)},
		{sockets, inside, netip.AddrPortFrom(serviceAddr(1), servedPort)},
		{packets, outside, netip.AddrPortFrom(serviceAddr(0), servedPort)},
	}
	if err := s.open(t, l.NodeA); err != nil {
		return nil, err
	}
	s.pipeline.store = newStore(n, []uint16{outsidePort, insidePort})
	return s, nil
}

// open opens the planes on a node. Nothing is written yet.
func (s *site) open(t lab.T, node *lab.Host) error {
	rules, err := nft.Open(nft.Options{NetNS: node.NetNSFD()})
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = rules.Close() }) // its tables go with the network namespace
	s.kernel, err = bpf.Open(bpf.Options{
		Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: node.Cgroup(), NetNS: node.NetNSFD(),
		ConnectedUDP: true, Durations: true,
	})
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		if _, err := s.kernel.Remove(context.Background()); err != nil {
			t.Fatalf("remove the programs: %v", err)
		}
	})
	s.pipeline = newPipeline(nil, ebpf.New(s.kernel, ebpf.Options{
		Packets: nftables.New(rules, nftables.Options{Families: route.Families(), Mark: masqueradeMark}),
	}))
	return nil
}

// newSide starts the threads of a side in a cgroup, on the hosts of the client and the backend, and listens at a port
// of the backend.
func newSide(t lab.T, cgroup string, hosts [2]*lab.Host, port uint16) (*side, error) {
	s := &side{
		client: lab.Inside(t, cgroup, hosts[0].NetNSFD()), server: lab.Inside(t, cgroup, hosts[1].NetNSFD()),
		listener: -1, datagrams: -1,
	}
	t.Cleanup(func() {
		_, _ = unix.Close(s.listener), unix.Close(s.datagrams) // nothing was written to them
	})
	// A client and its server take turns, and do not wake an idle processor.
	err := errors.Join(s.client(lab.Pin), s.server(lab.Pin), s.server(func() (err error) {
		at := &unix.SockaddrInet4{Addr: netip.MustParseAddr(backendAddr).As4(), Port: int(port)}
		if s.listener, err = openSocket(unix.SOCK_STREAM); err != nil {
			return err
		}
		if s.datagrams, err = openSocket(unix.SOCK_DGRAM); err != nil {
			return err
		}
		return errors.Join(unix.Bind(s.listener, at), unix.Listen(s.listener, maxCalls), unix.Bind(s.datagrams, at))
	}))
	if err != nil {
		return nil, fmt.Errorf("listen at port %d: %w", port, err)
	}
	return s, nil
}
