package iptables

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/divert"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// asClient connects to a backend from a foreign address, and returns the first bytes.
func asClient(h *lab.Host, p cluster.Protocol, client, backend netip.AddrPort) (string, error) {
	network, local := "tcp", net.Addr(net.TCPAddrFromAddrPort(client))
	if p == cluster.UDP {
		network, local = "udp", net.UDPAddrFromAddrPort(client)
	}
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: machine.Scale(500 * time.Millisecond), LocalAddr: local, Control: setTransparent}).Dial(network, backend.String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(machine.Scale(500 * time.Millisecond)))
	if p == cluster.UDP {
		if _, err := conn.Write([]byte("x")); err != nil {
			return "", err
		}
	}
	b := make([]byte, 200)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// setTransparent lets a socket have a foreign address.
func setTransparent(network, _ string, raw syscall.RawConn) error {
	level, opt := unix.SOL_IP, unix.IP_TRANSPARENT
	if strings.HasSuffix(network, "6") {
		level, opt = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	var err error
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, opt, 1) })
	return errors.Join(failed, err)
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
