package bpf

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == connectInherited {
		if err := connectAsChild(os.Args[2], os.Args[3]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	lab.Main(m)
}

// node is a network namespace with a cgroup, in which clients are balanced, and with backends.
type node struct {
	t      testing.TB
	conn   *Conn
	opt    Options
	inside func(func() error) error
	pods   []Pod // those that programs know
}

func newNode(t testing.TB) *node {
	t.Helper()
	kerneltest.NeedPrograms(t)
	n := &node{
		t: t,
		opt: Options{
			Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t),
			ConnectedUDP: true, Durations: true,
		},
	}
	n.inside = lab.Inside(t, n.opt.Cgroup, n.opt.NetNS)
	n.conn = n.open()
	t.Cleanup(func() {
		if _, err := n.conn.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) open() *Conn {
	n.t.Helper()
	c, err := Open(n.opt)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// write adds entries, and the programs.
func (n *node) write(list ...Entry) {
	n.t.Helper()
	var steps []Step
	for _, e := range list {
		steps = append(steps, Step{Entry: e})
	}
	steps = append(steps, Step{Entry: Entry{Key{Table: Programs}, n.conn.Version()}})
	if err := n.conn.Write(context.Background(), steps); err != nil {
		n.t.Fatalf("%+v", err)
	}
}

// know makes programs decide for a pod with these source addresses, of each family one at most; without one not any
// more.
func (n *node) know(pod int, addrs ...string) {
	n.t.Helper()
	var p Pod
	kerneltest.Do(n.t, pod, func() (err error) {
		p.NetNS, err = netns.Cookie()
		return err
	})
	for _, text := range addrs {
		if a := netip.MustParseAddr(text); a.Is4() {
			p.IPv4 = a
		} else {
			p.IPv6 = a
		}
	}
	n.pods = append(slices.DeleteFunc(n.pods, func(other Pod) bool { return other.NetNS == p.NetNS }), p)
	if err := n.conn.SetPods(n.pods); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) run(f func() error) {
	n.t.Helper()
	if err := n.inside(f); err != nil {
		n.t.Fatal(err)
	}
}

// eventually calls a function until it returns nil, for 30 seconds at most.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if err = f(); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal(err)
}

// address4 gives a namespace an address on lo.
func address4(t testing.TB, netns int, text string) {
	t.Helper()
	editAddress(t, netns, text, netlink.AddrAdd)
}

// editAddress adds or deletes an address of lo.
func editAddress(t testing.TB, netns int, text string, edit func(netlink.Link, *netlink.Addr) error) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		return edit(lo, a)
	})
}

// serve answers each connection, and each datagram, with the address of the server.
func serve(t testing.TB, netns int, at string) {
	t.Helper()
	var l net.Listener
	var p net.PacketConn
	kerneltest.Do(t, netns, func() (err error) {
		if l, err = net.Listen("tcp", at); err != nil {
			return err
		}
		p, err = net.ListenPacket("udp", at)
		return err
	})
	kerneltest.Serve(t, l, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%s\n", at) // the client notices errors
		_ = c.Close()
	})
	t.Cleanup(func() { _ = p.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.WriteTo([]byte(at), from) // the client notices errors
		}
	}()
}

// ask connects by TCP. It returns the backend that answered, and the address that getpeername returns.
func ask(to string) (answered, peer string, err error) {
	c, err := net.DialTimeout("tcp", to, machine.Scale(time.Second))
	if err != nil {
		return "", "", err
	}
	defer func() { _ = c.Close() }() // all is read
	answered, err = answerer(c)
	if err != nil {
		return "", "", err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return "", "", err
	}
	peer, err = peerOf(raw)
	return answered, peer, err
}

// answerer returns the backend that has answered a connection.
func answerer(c net.Conn) (string, error) {
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// peerOf returns the address that getpeername returns.
func peerOf(raw syscall.RawConn) (peer string, err error) {
	var sa unix.Sockaddr
	if failed := raw.Control(func(fd uintptr) { sa, err = unix.Getpeername(int(fd)) }); failed != nil {
		return "", failed
	}
	return text(sa), err
}

// connectMapped connects a socket of IPv6 to an IPv4 address.
func connectMapped(to string) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	at := netip.MustParseAddrPort(to)
	if err := unix.Connect(fd, mapped(at)); err != nil {
		return err
	}
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	if a := sa.(*unix.SockaddrInet6); a.Addr != at.Addr().As16() || a.Port != int(at.Port()) {
		return fmt.Errorf("the peer is %v, want %s", a, to)
	}
	return nil
}

func service(vip string, protocol uint8, clients Clients, backends ...string) []Entry {
	at := netip.MustParseAddrPort(vip)
	pool := Pool{1, protocol, byte(clients), byte(at.Addr().BitLen()), at.Addr().As16()[15], byte(at.Port())}
	var list []Entry
	for i, b := range backends {
		list = append(list, Slot{pool, i, netip.MustParseAddrPort(b), 1}.Entry(),
			Member{pool, netip.MustParseAddrPort(b)}.Entry())
	}
	return append(list, Frontend{At: at, Protocol: protocol, Clients: clients, Pool: pool, Count: len(backends)}.Entry())
}
