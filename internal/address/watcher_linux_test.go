package address_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// start runs a watcher until the test ends, and returns the lists that it reports. The
// callback takes the time busy for each.
func start(t *testing.T, w *address.Watcher, busy time.Duration) <-chan []netip.Addr {
	t.Helper()
	lists := make(chan []netip.Addr, 10000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- w.Run(ctx, func(a []netip.Addr) {
			lists <- a
			time.Sleep(busy)
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run does not end")
		}
	})
	return lists
}

// expect waits for a list that has, or has not, an address.
func expect(t *testing.T, lists <-chan []netip.Addr, a string, has func(bool) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case addrs := <-lists:
			if has(slices.Contains(addrs, netip.MustParseAddr(a))) {
				return
			}
		case <-deadline:
			t.Fatalf("no list with the expected state of %s", a)
		}
	}
}

func present(b bool) bool { return b }
func absent(b bool) bool  { return !b }

// change adds or deletes an address of the loopback interface of a namespace.
func change(t *testing.T, netns int, how func(netlink.Link, *netlink.Addr) error, prefix string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		ip, network, err := net.ParseCIDR(prefix)
		if err != nil {
			return err
		}
		network.IP = ip
		return how(lo, &netlink.Addr{IPNet: network})
	})
}

// The list is reported at the start, and immediately after each change, in both families.
func TestWatcher(t *testing.T) {
	ns := kerneltest.Namespace(t)
	lists := start(t, address.New(address.Options{NetNS: ns}), 0)
	expect(t, lists, "127.0.0.1", present)
	for _, c := range []struct{ prefix, addr string }{
		{"192.0.2.1/24", "192.0.2.1"},
		{"2001:db8::1/64", "2001:db8::1"},
	} {
		started := time.Now()
		change(t, ns, netlink.AddrAdd, c.prefix)
		expect(t, lists, c.addr, present)
		added := time.Since(started)
		started = time.Now()
		change(t, ns, netlink.AddrDel, c.prefix)
		expect(t, lists, c.addr, absent)
		deleted := time.Since(started)
		t.Logf("%s: reported %v after it was added, %v after it was deleted", c.addr, added, deleted)
		if limit := 500 * time.Millisecond; added > limit || deleted > limit {
			t.Errorf("%s: reported after %v and %v", c.addr, added, deleted)
		}
	}
}

// Changes that do not affect the list are not reported.
func TestChangesWithoutEffectAreNotReported(t *testing.T) {
	ns := kerneltest.Namespace(t)
	change(t, ns, netlink.AddrAdd, "192.0.2.1/24")
	lists := start(t, address.New(address.Options{NetNS: ns}), 0)
	expect(t, lists, "192.0.2.1", present)
	change(t, ns, netlink.AddrAdd, "fe80::1/64")
	change(t, ns, netlink.AddrReplace, "192.0.2.1/24")
	change(t, ns, netlink.AddrAdd, "192.0.2.1/32") // the same address again
	change(t, ns, netlink.AddrAdd, "192.0.2.9/32")
	addrs := <-lists
	if !slices.Contains(addrs, netip.MustParseAddr("192.0.2.9")) {
		t.Errorf("an unchanged list is reported: %v", addrs)
	}
}

// The addresses of the excluded interface are left out.
func TestListExcept(t *testing.T) {
	ns := kerneltest.Namespace(t)
	change(t, ns, netlink.AddrAdd, "192.0.2.3/32")
	for except, want := range map[string]bool{"": true, "lo": false, "missing": true} {
		addrs, err := address.New(address.Options{NetNS: ns, Except: except}).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(addrs, netip.MustParseAddr("192.0.2.3")); got != want {
			t.Errorf("without %q: %v, want the address: %v", except, addrs, want)
		}
	}
}

// The local address of a point-to-point link is listed, not the peer address.
func TestListPeer(t *testing.T) {
	ns := kerneltest.Namespace(t)
	withPeer := func(lo netlink.Link, a *netlink.Addr) error {
		a.Peer = &net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(32, 32)}
		return netlink.AddrAdd(lo, a)
	}
	change(t, ns, withPeer, "192.0.2.1/32")
	addrs, err := address.New(address.Options{NetNS: ns}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::1")}
	if !slices.Equal(addrs, want) {
		t.Errorf("got %v, want %v", addrs, want)
	}
}

// After any number of changes, also more than the kernel buffers messages for, the last list is correct.
func TestManyChanges(t *testing.T) {
	ns := kerneltest.Namespace(t)
	lists := start(t, address.New(address.Options{NetNS: ns}), 20*time.Millisecond)
	for i := range 1000 {
		change(t, ns, netlink.AddrAdd, fmt.Sprintf("10.0.%d.%d/32", i/200, i%200+1))
	}
	deadline := time.After(time.Minute)
	for n := 0; n < 1000; {
		select {
		case addrs := <-lists:
			n = len(addrs) - 2 // without 127.0.0.1 and ::1
		case <-deadline:
			t.Fatalf("only %d addresses were reported", n)
		}
	}
}
