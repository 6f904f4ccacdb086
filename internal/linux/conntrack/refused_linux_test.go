package conntrack_test

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Each call returns the connections that a server reset at once, but no established or unanswered connection, and none
// whose entry a program deleted.
func TestSubscribeRefused(t *testing.T) {
	ns := kerneltest.Namespace(t)
	table, err := conntrack.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	const rules = `table inet t {
	chain out { type filter hook output priority 0; ct state new counter; }
	chain in { type filter hook input priority 0; tcp dport 7 drop; }
}`
	var open net.Listener
	kerneltest.Do(t, ns, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules)
		if err := nft.Run(); err != nil {
			return err
		}
		open, err = net.Listen("tcp", "127.0.0.1:80")
		return err
	})
	defer func() { _ = open.Close() }()

	refused, err := table.SubscribeRefused(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort("127.0.0.1:4000")
	connect := func(to string, wait time.Duration) netip.AddrPort {
		from = netip.AddrPortFrom(from.Addr(), from.Port()+1) // that of an earlier connection may still be in use
		kerneltest.Do(t, ns, func() error {
			d := net.Dialer{Timeout: wait, LocalAddr: net.TCPAddrFromAddrPort(from)}
			if conn, err := d.Dial("tcp", to); err == nil {
				_ = conn.Close()
			}
			return nil
		})
		return from
	}
	connect("127.0.0.1:7", 50*time.Millisecond)
	connect("127.0.0.1:80", time.Minute)
	for _, e := range entries(t, table) {
		if err := table.Delete(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"127.0.0.1:81", "127.0.0.1:82"} {
		from := connect(to, time.Minute)
		got, err := refused()
		if err != nil || len(got) != 1 {
			t.Fatalf("got %s, %v, want one connection", got, err)
		}
		if e := got[0]; e.OrigSrc != from || e.OrigDst.String() != to || e.ReplySrc != e.OrigDst || e.Answered() {
			t.Errorf("got %s, want a connection from %s to %s", e, from, to)
		}
	}
}
