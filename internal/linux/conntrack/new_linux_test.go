package conntrack_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Each call returns the entries of the backends, in both families, that were added since the last call.
func TestSubscribeNew(t *testing.T) {
	ct := conntracktest.Open(t)
	create(t, ct, flow(conntrack.TCP, "10.0.0.1:1", "10.96.0.10:80", "10.1.0.1:80"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	backends := []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")}
	begun, err := ct.SubscribeNew(ctx, backends)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		create(t, ct,
			flow(conntrack.TCP, "10.0.0.1:2", "10.96.0.10:80", "10.1.0.1:80"),
			flow(conntrack.TCP, "10.0.0.1:3", "10.96.0.10:80", "10.1.0.2:80"),
			flow(conntrack.UDP, "10.0.0.1:4", "10.1.0.1:53", "10.1.0.1:53"),
			flow(conntrack.TCP, "[fd00::1]:5", "[fd96::10]:80", "[fd01::1]:80"),
			flow(conntrack.TCP, "[fd00::1]:6", "[fd96::10]:80", "[fd01:1::1]:80")) // with the same last four bytes
		got, err := begun()
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"17 10.0.0.1:4 > 10.1.0.1:53", "6 10.0.0.1:2 > 10.96.0.10:80 via 10.1.0.1:80",
			"6 [fd00::1]:5 > [fd96::10]:80 via [fd01::1]:80",
		}
		if d := cmp.Diff(want, lines(got)); d != "" {
			t.Errorf("begun (-want +got):\n%s", d)
		}
		for _, e := range got {
			if now, exists, err := ct.Get(t.Context(), e); !exists || err != nil {
				t.Errorf("entry %s: %+v, %t, %v", e, now, exists, err)
			}
		}
		for _, e := range entries(t, ct.Table) {
			if err := ct.Delete(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	for err == nil {
		_, err = begun()
	}
}

// entries returns all entries.
func entries(t *testing.T, ct *conntrack.Table) (all []conntrack.Entry) {
	t.Helper()
	err := ct.Each(t.Context(), conntrack.Filter{}, func(e conntrack.Entry) error {
		all = append(all, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// If more events come than fit into the socket buffer, a call returns ErrLost.
func TestLostEvents(t *testing.T) {
	ct := conntracktest.Open(t)
	begun, err := ct.SubscribeNew(t.Context(), []netip.Addr{netip.MustParseAddr("10.1.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50_000 {
		src := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1)).String()
		create(t, ct, flow(conntrack.TCP, src, "10.96.0.10:80", "10.1.0.1:80"))
	}
	for !errors.Is(err, conntrack.ErrLost) {
		var got []conntrack.Entry
		if got, err = begun(); err == nil && len(got) == 0 {
			t.Fatal("no event was lost")
		}
	}
	if _, err := begun(); err != nil {
		t.Errorf("after the loss: %v", err)
	}
}

// A connection is not Closing before both sides have closed it, whichever side closes first.
func TestHalfClosedConnection(t *testing.T) {
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error {
		const rules = "table inet t { chain out { type filter hook output priority 0; ct state new counter; }; }"
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules)
		return nft.Run()
	})
	ct, err := conntrack.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ct.Close() }()
	for _, first := range []string{"client", "server"} {
		conns := connected(t, ns)
		state := func() conntrack.Entry {
			for _, e := range entries(t, ct) {
				if e.OrigSrc.String() == conns["client"].LocalAddr().String() {
					return e
				}
			}
			t.Fatal("the connection is not in the table")
			return conntrack.Entry{}
		}
		if err := conns[first].CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if e := state(); e.Closing() || e.State <= 3 {
			t.Errorf("after the %s has closed: state %d, closing: %t", first, e.State, e.Closing())
		}
		for _, conn := range conns {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if e := state(); !e.Closing() {
			t.Errorf("after both have closed: state %d", e.State)
		}
	}
}

// connected returns both ends of a connection.
func connected(t *testing.T, ns int) map[string]*net.TCPConn {
	t.Helper()
	var client, server net.Conn
	kerneltest.Do(t, ns, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
			return err
		}
		server, err = l.Accept()
		return err
	})
	return map[string]*net.TCPConn{"client": client.(*net.TCPConn), "server": server.(*net.TCPConn)}
}
