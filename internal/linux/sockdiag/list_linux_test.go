package sockdiag

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestConnectionsAreCountedByLocalAddress(t *testing.T) {
	netns := kerneltest.Namespace(t)
	var conns []io.Closer
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", "[::]:8080") // both families, so that IPv4 comes mapped
		if err != nil {
			return err
		}
		conns = append(conns, l)
		for _, from := range []string{"127.0.0.2", "127.0.0.2", "::1"} {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			to := map[bool]string{true: "127.0.0.1:8080", false: "[::1]:8080"}[from != "::1"]
			c, err := d.Dial("tcp", to)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	check := func(want map[netip.Addr]int) {
		t.Helper()
		got, err := Node{NetNS: netns}.Local(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	}
	// Both ends of each connection are in this namespace.
	check(map[netip.Addr]int{
		netip.MustParseAddr("127.0.0.2"): 2, netip.MustParseAddr("127.0.0.1"): 2, netip.MustParseAddr("::1"): 2,
	})
	for _, c := range conns[1:] {
		_ = c.(*net.TCPConn).SetLinger(0) // closes at once, without TIME_WAIT
		_ = c.Close()
	}
	_ = conns[0].Close()
	check(map[netip.Addr]int{})
}

func TestListenersAreListedAndConnectionsAreNot(t *testing.T) {
	netns := kerneltest.Namespace(t)
	var open []io.Closer
	kerneltest.Do(t, netns, func() error {
		for _, at := range []string{"[::]:8080", "127.0.0.1:8081", "[::1]:8082"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			open = append(open, l)
		}
		for _, at := range []string{"0.0.0.0:53", "[::1]:54"} {
			l, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			open = append(open, l)
		}
		for _, network := range []string{"tcp", "udp"} {
			c, err := net.Dial(network, "127.0.0.1:8081")
			if err != nil {
				return err
			}
			open = append(open, c)
		}
		return nil
	})
	got, err := Node{NetNS: netns}.Listeners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []Listener
	for at, protocol := range map[string]uint8{
		"[::]:8080": unix.IPPROTO_TCP, "127.0.0.1:8081": unix.IPPROTO_TCP, "[::1]:8082": unix.IPPROTO_TCP,
		"[::]:53": unix.IPPROTO_UDP, "[::1]:54": unix.IPPROTO_UDP, // Go opens both families for 0.0.0.0
	} {
		want = append(want, Listener{Protocol: protocol, At: netip.MustParseAddrPort(at), UID: uint32(os.Getuid())})
	}
	less := func(a, b Listener) bool { return a.At.Compare(b.At) < 0 }
	diff := cmp.Diff(want, got, cmpopts.SortSlices(less), cmpopts.EquateComparable(netip.AddrPort{}),
		cmpopts.IgnoreFields(Listener{}, "Inode"))
	if diff != "" {
		t.Errorf("listeners (-want +got):\n%s", diff)
	}
	for _, l := range got {
		if l.Inode == 0 {
			t.Errorf("%v has no inode", l)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	if got, err := (Node{NetNS: netns}).Listeners(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("after all are closed: %v, %v", got, err)
	}
}

func TestMain(m *testing.M) { lab.Main(m) }

const server = "127.0.0.1:8080"

// dial opens connections to a server in a namespace.
func dial(t *testing.T, netns int, multipath bool, n int) (all []net.Conn) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		var d net.Dialer
		d.SetMultipathTCP(multipath)
		for range n {
			c, err := d.DialContext(t.Context(), "tcp", server)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() }) // nothing was written
			all = append(all, c)
		}
		return nil
	})
	return all
}

// Connections are counted by peer and namespace, until they are closed, also those of MPTCP.
func TestCount(t *testing.T) {
	node, pod := kerneltest.Namespace(t), kerneltest.Namespace(t)
	mount := filepath.Join(t.TempDir(), "pod")
	if err := os.WriteFile(mount, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", pod), mount, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) }) // the mount namespace ends with the test
	var cookie uint64
	kerneltest.Do(t, pod, func() (err error) { cookie, err = netns.Cookie(); return err })
	for _, ns := range []int{node, pod} {
		var l net.Listener
		kerneltest.Do(t, ns, func() (err error) {
			var config net.ListenConfig
			config.SetMultipathTCP(true)
			l, err = config.Listen(t.Context(), "tcp", server)
			return err
		})
		kerneltest.Serve(t, l, func(c net.Conn) {
			_, _ = io.Copy(io.Discard, c) // until the client closes
			_ = c.Close()
		})
	}
	dial(t, node, false, 2)
	stay, go1, go2 := dial(t, pod, false, 3), dial(t, pod, false, 1), dial(t, pod, true, 2)
	at := netip.MustParseAddrPort(server)
	count := func(want map[uint64]int) error {
		all, err := Node{NetNS: node}.Count(context.Background(), func(peer netip.AddrPort) bool { return peer == at })
		if err != nil {
			return err
		}
		if len(all) != 1 || len(all[at]) != len(want) || all[at][OfNode] != want[OfNode] || all[at][cookie] != want[cookie] {
			return fmt.Errorf("counted %v, want %v", all, want)
		}
		return nil
	}
	if err := count(map[uint64]int{OfNode: 2, cookie: len(stay) + 3}); err != nil {
		t.Error(err)
	}
	for _, c := range append(go1, go2...) {
		_ = c.Close() // nothing was written
	}
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = count(map[uint64]int{OfNode: 2, cookie: len(stay)}); err == nil {
			return
		}
	}
	t.Error(err)
}
