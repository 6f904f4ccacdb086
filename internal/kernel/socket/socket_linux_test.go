package socket

import (
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func TestConnectionsAreCountedByLocalAddressAndListenersAreNone(t *testing.T) {
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
		got, err := New(Options{NetNS: netns}).Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	}
	// Each has two ends here.
	check(map[netip.Addr]int{
		netip.MustParseAddr("127.0.0.2"): 2, netip.MustParseAddr("127.0.0.1"): 2, netip.MustParseAddr("::1"): 2,
	})
	for _, c := range conns[1:] {
		_ = c.(*net.TCPConn).SetLinger(0) // at once, with nothing to remember
		_ = c.Close()
	}
	_ = conns[0].Close()
	check(map[netip.Addr]int{})
}
