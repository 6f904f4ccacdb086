package conntrack_test

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Refusals reports each connection that a server resets at once, but no established or unanswered connection.
func TestRefusals(t *testing.T) {
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

	ctx, cancel := context.WithCancel(t.Context())
	subscribed, got, done := make(chan struct{}), make(chan conntrack.Entry, 10), make(chan error, 1)
	go func() {
		done <- table.Refusals(ctx, func() { close(subscribed) }, func(e conntrack.Entry) { got <- e })
	}()
	select {
	case <-subscribed:
	case err := <-done:
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
	for _, to := range []string{"127.0.0.1:81", "127.0.0.1:82"} {
		from := connect(to, time.Minute)
		e := <-got
		if e.OrigSrc != from || e.OrigDst.String() != to || e.ReplySrc != e.OrigDst || e.Answered() {
			t.Errorf("got %s, want a connection from %s to %s", e, from, to)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(got) > 0 {
		t.Errorf("also %s", <-got)
	}
}
