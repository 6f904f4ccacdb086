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

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

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
