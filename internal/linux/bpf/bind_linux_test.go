package bpf

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Programs in the network of the node cannot bind the port of a NodePort at an address that serves it; other ports,
// addresses, protocols and network namespaces are free.
func TestNodePortsAreGuarded(t *testing.T) {
	n := newNode(t)
	n.opt.GuardNodePorts = true
	n.conn = n.open()
	address4(t, n.opt.NetNS, "192.0.2.1/32")
	address4(t, n.opt.NetNS, "192.0.2.2/32")
	n.write(
		NodePort(netip.IPv4Unspecified(), 30080, unix.IPPROTO_TCP),
		NodePort(netip.IPv6Unspecified(), 30090, unix.IPPROTO_UDP),
		NodeAddr(netip.MustParseAddr("192.0.2.1")),
	)
	pod := lab.Inside(t, n.opt.Cgroup, kerneltest.Namespace(t))
	for _, tt := range []struct {
		protocol int
		at       string
		run      func(func() error) error
		want     error
	}{
		{unix.IPPROTO_TCP, "0.0.0.0:30080", n.inside, unix.EPERM},
		{unix.IPPROTO_TCP, "192.0.2.1:30080", n.inside, unix.EPERM},
		{unix.IPPROTO_TCP, "[::]:30080", n.inside, unix.EPERM},
		{unix.IPPROTO_TCP, "192.0.2.2:30080", n.inside, nil},
		{unix.IPPROTO_TCP, "127.0.0.1:30080", n.inside, nil},
		{unix.IPPROTO_TCP, "[::1]:30080", n.inside, nil},
		{unix.IPPROTO_TCP, "0.0.0.0:30081", n.inside, nil},
		{unix.IPPROTO_TCP, "0.0.0.0:0", n.inside, nil},
		{unix.IPPROTO_UDP, "0.0.0.0:30080", n.inside, nil},
		{unix.IPPROTO_UDP, "[::]:30090", n.inside, unix.EPERM},
		{unix.IPPROTO_UDP, "0.0.0.0:30090", n.inside, nil},
		{unix.IPPROTO_TCP, "0.0.0.0:30080", pod, nil},
	} {
		err := tt.run(func() error { return bind(tt.protocol, netip.MustParseAddrPort(tt.at)) })
		if !errors.Is(err, tt.want) {
			t.Errorf("bind %d %s returns %v, want %v", tt.protocol, tt.at, err, tt.want)
		}
	}

	n.opt.GuardNodePorts = false
	n.conn = n.open()
	n.write()
	eventually(t, func() error { // the kernel detaches a program some time after its link is gone
		return n.inside(func() error { return bind(unix.IPPROTO_TCP, netip.MustParseAddrPort("0.0.0.0:30080")) })
	})
}

// bind binds a socket for a moment.
func bind(protocol int, at netip.AddrPort) error {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	kind := map[int]int{unix.IPPROTO_TCP: unix.SOCK_STREAM, unix.IPPROTO_UDP: unix.SOCK_DGRAM}[protocol]
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return errors.Join(unix.Bind(fd, lab.Sockaddr(at)), unix.Close(fd))
}
