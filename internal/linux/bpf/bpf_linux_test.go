package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

func TestConnect(t *testing.T) {
	n := newNode(t)
	v4, v6 := []string{"127.0.0.1:8080", "127.0.0.2:8080"}, []string{"[::1]:8080", "[::1]:8081"}
	for _, at := range slices.Concat(v4, v6) {
		serve(t, n.opt.NetNS, at)
	}
	n.write(slices.Concat(service("10.96.0.1:80", 6, OfNode, v4...), service("[fd00::1]:80", 6, OfNode, v6...))...)
	for vip, backends := range map[string][]string{"10.96.0.1:80": v4, "[fd00::1]:80": v6} {
		count := map[string]int{}
		for range 40 {
			n.run(func() error {
				answered, peer, err := ask(vip)
				count[answered]++
				if err == nil && peer != vip {
					return fmt.Errorf("the peer is %s, want %s", peer, vip)
				}
				return err
			})
		}
		if len(count) != 2 || count[backends[0]] == 0 || count[backends[1]] == 0 {
			t.Errorf("%s: answers %v, want some of each of %v", vip, count, backends)
		}
	}
	n.run(func() error { return connectMapped("10.96.0.1:80") })
	counts, err := n.conn.Counts()
	all := 0
	for _, count := range counts {
		all += int(count)
	}
	if err != nil || len(counts) != 2 || all != 81 {
		t.Errorf("counts %v, %v, want 41 and 40", counts, err)
	}
	// A process of another cgroup is not balanced.
	kerneltest.Do(t, n.opt.NetNS, func() error {
		if answered, _, err := ask("10.96.0.1:80"); err == nil {
			return fmt.Errorf("%s answered a client outside of the cgroup", answered)
		}
		return nil
	})
}

func TestUnconnectedUDP(t *testing.T) {
	n := newNode(t)
	v4, v6 := []string{"127.0.0.1:53", "127.0.0.2:53"}, []string{"[::1]:53", "[::1]:54"}
	for _, at := range slices.Concat(v4, v6) {
		serve(t, n.opt.NetNS, at)
	}
	n.write(slices.Concat(service("10.96.0.10:53", 17, OfNode, v4...), service("[fd00::10]:53", 17, OfNode, v6...))...)
	for _, client := range []struct{ network, to string }{
		{"udp4", "10.96.0.10:53"}, {"udp", "10.96.0.10:53"}, {"udp6", "[fd00::10]:53"},
	} {
		count := map[string]int{}
		for range 30 {
			n.run(func() error {
				answered, err := askThrice(client.network, client.to)
				count[answered]++
				return err
			})
		}
		if len(count) != 2 {
			t.Errorf("%s to %s: answers %v, want both backends", client.network, client.to, count)
		}
	}
}

// askThrice sends datagrams from one socket. The same server must answer all, in the name of the Service.
func askThrice(network, service string) (answered string, err error) {
	c, err := net.ListenPacket(network, ":0") // "udp" has both families
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // all is read
	to := netip.MustParseAddrPort(service)
	for range 3 {
		if _, err := c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(to)); err != nil {
			return "", err
		}
		b := make([]byte, 64)
		if err := c.SetReadDeadline(time.Now().Add(machine.Scale(time.Second))); err != nil {
			return "", err
		}
		size, from, err := c.ReadFrom(b)
		if err != nil {
			return "", err
		}
		at := from.(*net.UDPAddr).AddrPort()
		if netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) != to {
			return "", fmt.Errorf("the reply seems to come from %s", from)
		}
		if answered == "" {
			answered = string(b[:size])
		}
		if answered != string(b[:size]) {
			return "", fmt.Errorf("%s answers after %s", b[:size], answered)
		}
	}
	return answered, nil
}

// A namespace that is not the node's is served once its address is known to be that of a pod.
func TestPods(t *testing.T) {
	n := newNode(t)
	pod := kerneltest.Namespace(t)
	address4(t, pod, "10.1.0.1/32")
	serve(t, pod, "10.1.0.1:8080")
	serve(t, pod, "127.0.0.1:8080")
	inside := lab.Inside(t, n.opt.Cgroup, pod)
	try := func(vip string) string {
		answered := ""
		err := inside(func() (err error) {
			answered, _, err = ask(vip)
			return err
		})
		if err != nil {
			return "none"
		}
		return answered
	}
	other := service("10.96.0.1:80", 6, OfPods, "127.0.0.1:8080")
	self := service("10.96.0.2:80", 6, OfPods, "10.1.0.1:8080")
	self = append(self, Member{Pool([]byte(self[0].Data)[:16]), netip.MustParseAddrPort("10.1.0.1:0")}.Entry())
	n.write(slices.Concat(other, self)...)
	want := func(vip, backend string) {
		t.Helper()
		if got := try(vip); got != backend {
			t.Errorf("%s answers at %s, want %s", got, vip, backend)
		}
	}
	want("10.96.0.1:80", "none")
	n.know(pod, "10.1.0.1")
	want("10.96.0.1:80", "127.0.0.1:8080")
	want("10.96.0.2:80", "none") // it would connect to itself
	f := Frontend{
		At: netip.MustParseAddrPort("10.96.0.2:80"), Protocol: 6, Clients: OfPods, Pool: Pool([]byte(self[0].Data)[:16]),
		Count: 1,
	}
	for local, backend := range map[string]string{"10.1.0.1": "none", "10.1.0.65": "none", "10.1.0.2": "10.1.0.1:8080"} {
		f.NotLocal = NotLocal([]netip.Addr{netip.MustParseAddr(local)})
		n.write(f.Entry())
		want("10.96.0.2:80", backend) // the last set is wrong: the members are not read then
	}
	n.know(pod)
	want("10.96.0.1:80", "none")
}

func TestNodePort(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	n.write(service("0.0.0.0:30080", 6, OfNode, "127.0.0.1:8080")...)
	n.run(func() error {
		if answered, _, err := ask("192.168.0.2:30080"); err == nil {
			return fmt.Errorf("%s answered at another host", answered)
		}
		return nil
	})
	n.write(NodeAddr(netip.MustParseAddr("192.168.0.2")))
	n.run(func() error {
		_, _, err := ask("192.168.0.2:30080")
		return err
	})
}
