package iptables

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/divert"
	"github.com/sluice-proxy/sluice/test/lab"
)

// asClient connects to a backend from a foreign address, and returns the first bytes.
func asClient(h *lab.Host, p cluster.Protocol, client, backend netip.AddrPort) (string, error) {
	var conn net.Conn
	err := h.Do(func() error {
		family, level, opt := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
		sa := func(a netip.AddrPort) unix.Sockaddr {
			if a.Addr().Is6() {
				return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
			}
			return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
		}
		if backend.Addr().Is6() {
			family, level, opt = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		}
		kind := unix.SOCK_STREAM
		if p == cluster.UDP {
			kind = unix.SOCK_DGRAM
		}
		fd, err := unix.Socket(family, kind, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "x")
		defer f.Close()
		if err := unix.SetsockoptInt(fd, level, opt, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, sa(client)); err != nil {
			return err
		}
		tv := unix.Timeval{Usec: 500000}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
			return err
		}
		if err := unix.Connect(fd, sa(backend)); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		conn, err = net.FileConn(f)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if p == cluster.UDP {
		if _, err := conn.Write([]byte("x")); err != nil {
			return "", err
		}
	}
	b := make([]byte, 200)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// Pods on this node see the address of the client, and their replies reach the socket that has
// it, also with the strict check of source addresses.
func TestPodsReplyToSocketsWithTheAddressOfAClient(t *testing.T) {
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			l := newPortalLab(t, variant)
			backend := l.Pod(l.NodeA, "10.180.0.2", "fd00:10:180::2")
			l.NodeA.Sysctl("net/ipv4/conf/all/rp_filter", "1")
			d := divert.New(l.NodeA.NetNSFD())
			if err := d.Ensure(transparentBit, divert.IPv4, divert.IPv6); err != nil {
				t.Fatal(err)
			}
			probe := func(p cluster.Protocol, client, to netip.Addr) (saw string, err error) {
				return asClient(l.NodeA, p, netip.AddrPortFrom(client, 0), netip.AddrPortFrom(to, 8080))
			}
			for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
				backend.Serve(p, 8080)
				for what, client := range map[string]*lab.Host{"the outside": l.Outside, "another node": l.NodeB, "a pod on this node": l.pod, "this node": l.NodeA} {
					for _, from := range client.Addrs()[:2] {
						saw, err := probe(p, from, backend.Addr(from))
						if err != nil || !strings.Contains(saw, " "+strings.TrimSuffix(netip.AddrPortFrom(from, 1).String(), "1")) {
							t.Errorf("%s %s as %s: the backend saw %q: %v", what, p, from, saw, err)
						}
					}
				}
			}
			if _, err := d.Remove(); err != nil {
				t.Fatal(err)
			}
			if saw, err := probe(cluster.TCP, l.Outside.Addr4(), backend.Addr4()); err == nil {
				t.Errorf("without the routing rule the backend saw %q", saw)
			}
		})
	}
}
