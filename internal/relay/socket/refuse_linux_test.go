package socket_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/socket"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// listen opens a socket in a namespace.
func listen(t *testing.T, netns int, at string) (fd int, port uint16) {
	t.Helper()
	kerneltest.Do(t, netns, func() (err error) {
		fd, err = socket.ListenUDP(netip.AddrPortFrom(netip.MustParseAddr(at), 0))
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	local, err := socket.Addr(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, local.Port()
}

// dial returns a client in a namespace.
func dial(t *testing.T, netns int, to string, port uint16) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), port)))
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A client learns that its datagram was refused, with a destination that netfilter has translated
// as well: conntrack translates the error back.
func TestRefuse(t *testing.T) {
	rules := map[string]string{
		"direct": "",
		"redirected": `table inet t { chain c {
			type nat hook prerouting priority -100
			ip daddr 10.96.0.1 udp dport 53 redirect to :PORT
			ip6 daddr fd96::1 udp dport 53 redirect to :PORT
		}
}`,
		"translated": `table inet t { chain c {
			type nat hook prerouting priority -100
			ip daddr 10.96.0.1 udp dport 53 dnat ip to 10.0.0.1:PORT
			ip6 daddr fd96::1 udp dport 53 dnat ip6 to [fd01::1]:PORT
		}
}`,
	}
	for name, rule := range rules {
		for _, family := range []struct{ any, service, node string }{
			{"0.0.0.0", "10.96.0.1", "10.0.0.1"}, {"::", "fd96::1", "fd01::1"},
		} {
			t.Run(name+" "+family.any, func(t *testing.T) {
				node, pod := pair(t)
				fd, port := listen(t, node, family.any)
				to, toPort := family.service, uint16(53)
				if rule == "" {
					to, toPort = family.node, port
				}
				run(t, node, "nft", "-f", "-", strings.ReplaceAll(rule, "PORT", strconv.Itoa(int(port))))
				refuse(t, listener{node, fd, netip.AddrPortFrom(netip.MustParseAddr(family.node), port)}, dial(t, pod, to, toPort))
			})
		}
	}
}

// listener is a socket of Listen in a namespace, and the address to which clients send.
type listener struct {
	netns, fd int
	at        netip.AddrPort
}

// refuse receives a datagram of a client and refuses it.
func refuse(t *testing.T, l listener, client *net.UDPConn) {
	t.Helper()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, 60_000); n != 1 {
		t.Fatalf("nothing to receive: %v", err)
	}
	n, sender, err := unix.Recvfrom(l.fd, make([]byte, 9), 0)
	if err != nil {
		t.Fatal(err)
	}
	var r *socket.Refuser
	kerneltest.Do(t, l.netns, func() (err error) {
		r, err = socket.NewRefuser()
		return err
	})
	defer r.Close()
	if err := r.Refuse(peer(sender), l.at, n); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 9)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the client gets %v, want that the connection is refused", err)
	}
}

// peer returns an address of a system call.
func peer(a unix.Sockaddr) netip.AddrPort {
	if v4, is := a.(*unix.SockaddrInet4); is {
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), uint16(v4.Port))
	}
	v6 := a.(*unix.SockaddrInet6)
	return netip.AddrPortFrom(netip.AddrFrom16(v6.Addr), uint16(v6.Port))
}

// pair returns a node and a pod, whose default route leads to the node.
func pair(t *testing.T) (node, pod int) {
	t.Helper()
	node, pod = kerneltest.Namespace(t), kerneltest.Namespace(t)
	peer := netlinkNamespace(t, pod)
	run(t, node, "ip", "link", "add", "v", "type", "veth", "peer", "name", "v", "netns", peer, "")
	for _, a := range []string{"10.0.0.1/24", "fd01::1/64"} {
		run(t, node, "ip", "address", "add", a, "dev", "v", "nodad", "")
	}
	for _, a := range []string{"10.0.0.2/24", "fd01::2/64"} {
		run(t, pod, "ip", "address", "add", a, "dev", "v", "nodad", "")
	}
	run(t, node, "ip", "link", "set", "v", "up", "")
	run(t, pod, "ip", "link", "set", "v", "up", "")
	run(t, pod, "ip", "route", "add", "default", "via", "10.0.0.1", "")
	run(t, pod, "ip", "-6", "route", "add", "default", "via", "fd01::1", "")
	return node, pod
}

// netlinkNamespace returns the number of a process in a namespace.
func netlinkNamespace(t *testing.T, netns int) string {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	kerneltest.Do(t, netns, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return strconv.Itoa(cmd.Process.Pid)
}

// run runs a program in a namespace; the last argument is its input.
func run(t *testing.T, netns int, name string, args ...string) {
	t.Helper()
	last := len(args) - 1
	cmd := exec.Command(name, args[:last]...)
	cmd.Stdin = strings.NewReader(args[last])
	kerneltest.Do(t, netns, func() error {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v: %s", name, args, err, out)
		}
		return nil
	})
}
