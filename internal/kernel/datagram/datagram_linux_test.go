package datagram_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// families are an address to listen on, one to send to that is not the one the kernel would
// choose as source, and the largest datagram.
var families = []struct {
	name, any, second, client string
	max                       int
}{
	{"IPv4", "0.0.0.0", "127.0.0.2", "127.0.0.1", 65507},
	{"IPv6", "::", "fd00::2", "::1", 65527},
}

// listen opens a socket in a namespace with the addresses of families.
func listen(t *testing.T, netns int, at string) (fd int, port uint16) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		if out, err := exec.Command("ip", "address", "replace", "fd00::2/128", "dev", "lo", "nodad").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		var err error
		fd, err = datagram.Listen(netip.AddrPortFrom(netip.MustParseAddr(at), 0))
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	local, err := datagram.LocalAddr(fd)
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

func ready(t *testing.T, fd int) {
	t.Helper()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000); n != 1 {
		t.Fatalf("nothing to receive: %v", err)
	}
}

// sendUntilReady sends a datagram again while it does not arrive: the largest one travels in fragments, of
// which a busy machine may lose one.
func sendUntilReady(t *testing.T, client *net.UDPConn, data []byte, fd int) {
	t.Helper()
	for range 60 {
		if _, err := client.Write(data); err != nil {
			t.Fatal(err)
		}
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000); n == 1 {
			return
		}
	}
	t.Fatal("nothing to receive")
}

// A reply to a datagram, of any size, comes from the address to which the datagram was sent.
func TestReplyFromSecondAddress(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			ns := kerneltest.Namespace(t)
			fd, port := listen(t, ns, f.any)
			client := dial(t, ns, f.second, port) // connected: it receives from this address only
			b := datagram.NewBatch(4)
			for _, size := range []int{0, 1, 1472, f.max} {
				sent := bytes.Repeat([]byte{byte(size)}, size)
				sendUntilReady(t, client, sent, fd)
				n, err := b.Receive(fd)
				if err != nil || n != 1 || !bytes.Equal(b.Data(0), sent) {
					t.Fatalf("received %d datagrams, want 1 of %d bytes: %v", n, size, err)
				}
				p := b.Path(0)
				if p.Local().String() != f.second || p.Client() != client.LocalAddr().(*net.UDPAddr).AddrPort() {
					t.Errorf("from %v to %v, want to %s", p.Client(), p.Local(), f.second)
				}
				if n, err := b.Reply(fd, 0, 1, &p); n != 1 || err != nil {
					t.Fatalf("replied %d times: %v", n, err)
				}
				got := make([]byte, datagram.MaxSize)
				if n, err := client.Read(got); err != nil || !bytes.Equal(got[:n], sent) {
					t.Errorf("read %d bytes, want %d: %v", n, size, err)
				}
			}
		})
	}
}

// A batch holds as many datagrams as it has room for; those that wait come with the next one.
func TestBatch(t *testing.T) {
	ns := kerneltest.Namespace(t)
	fd, port := listen(t, ns, "0.0.0.0")
	client := dial(t, ns, "127.0.0.1", port)
	for i := range 6 {
		if _, err := client.Write([]byte{byte(i), byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	b := datagram.NewBatch(4)
	if n, err := b.Receive(fd); n != 4 || err != nil {
		t.Fatalf("received %d, want 4: %v", n, err)
	}
	p := b.Path(3)
	if n, err := b.Reply(fd, 1, 4, &p); n != 3 || err != nil {
		t.Fatalf("replied %d times, want 3: %v", n, err)
	}
	for i := 1; i < 4; i++ {
		got := make([]byte, 9)
		if n, err := client.Read(got); n != 2 || got[0] != byte(i) {
			t.Errorf("read %v of %d bytes, want datagram %d: %v", got, n, i, err)
		}
	}
	if n, err := b.Receive(fd); n != 2 || err != nil {
		t.Errorf("received %d, want the 2 others: %v", n, err)
	}
	if _, err := b.Receive(fd); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("error %v, want EAGAIN", err)
	}
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
				refuse(t, listener{node, fd, port}, dial(t, pod, to, toPort))
			})
		}
	}
}

// listener is a socket of Listen in a namespace.
type listener struct {
	netns, fd int
	port      uint16
}

// refuse receives a datagram of a client and refuses it.
func refuse(t *testing.T, l listener, client *net.UDPConn) {
	t.Helper()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	ready(t, l.fd)
	b := datagram.NewBatch(1)
	if _, err := b.Receive(l.fd); err != nil {
		t.Fatal(err)
	}
	p := b.Path(0)
	var r *datagram.Refuser
	kerneltest.Do(t, l.netns, func() (err error) {
		r, err = datagram.NewRefuser()
		return err
	})
	defer r.Close()
	if err := r.Refuse(&p, l.port, len("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 9)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the client gets %v, want that the connection is refused", err)
	}
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
