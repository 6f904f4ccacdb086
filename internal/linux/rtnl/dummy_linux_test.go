package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Addresses on an interface that stays down are local all the same, in both families.
func TestAddressesOnADummyInterfaceAreLocal(t *testing.T) {
	netns := kerneltest.Namespace(t)
	links := New(netns)
	for range 2 { // the second time everything exists
		err := links.Create(t.Context(), "vips")
		if errors.Is(err, unix.EOPNOTSUPP) {
			kerneltest.Lacks(t, "dummy interfaces")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := links.AddAddresses(t.Context(), "vips", parse("10.96.0.1", "fd00::1", "10.96.0.2")); err != nil {
			t.Fatal(err)
		}
	}
	got, err := links.Addresses(t.Context(), "vips")
	want := parse("10.96.0.1", "10.96.0.2", "fd00::1")
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("addresses (-want +got): %v\n%s", err, diff)
	}
	kerneltest.Do(t, netns, func() error {
		for _, at := range []string{"10.96.0.1:80", "[fd00::1]:80"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			c, err := net.Dial("tcp", at)
			if err != nil {
				return err
			}
			_, _ = c.Close(), l.Close()
		}
		return nil
	})
}

func TestAddressesNeedTheirInterface(t *testing.T) {
	err := New(kerneltest.Namespace(t)).AddAddresses(t.Context(), "vips", parse("10.96.0.1"))
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want %v", err, ErrNotFound)
	}
}

// In IPv6 an address of any interface may become the source of a connection. Those of Services must not.
func TestAddedAddressesAreNotTheSourceOfOtherConnections(t *testing.T) {
	netns := kerneltest.Namespace(t)
	links := bridge(t, netns, "fd00:1::1/128")
	if err := links.AddAddresses(t.Context(), "vips", parse("fd00:2::1")); err != nil {
		t.Fatal(err)
	}
	kerneltest.Do(t, netns, func() error {
		if out, err := exec.Command("ip", "-6", "route", "add", "fd00:2::/64", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if err := waitForAddresses(); err != nil {
			return err
		}
		c, err := net.Dial("udp", "[fd00:2::2]:80") // sends nothing
		if err != nil {
			return err
		}
		if got := netip.MustParseAddrPort(c.LocalAddr().String()).Addr(); got != netip.MustParseAddr("fd00:1::1") {
			t.Errorf("the source is %s", got)
		}
		return c.Close()
	})
}

// Sources can be preferred for addresses on an interface that is down, as kube-proxy's is.
func TestSourcesArePreferredOnAnInterfaceThatIsDown(t *testing.T) {
	netns := kerneltest.Namespace(t)
	links := New(netns)
	err := links.Create(t.Context(), "vips")
	if errors.Is(err, unix.EOPNOTSUPP) {
		kerneltest.Lacks(t, "dummy interfaces")
	}
	if err == nil {
		err = links.AddAddresses(t.Context(), "vips", parse("10.96.0.1", "fd00::1"))
	}
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Do(t, netns, func() error {
		const commands = "ip link set lo up; ip addr add 192.0.2.7/32 dev lo; ip addr add 2001:db8::7/128 dev lo nodad"
		return exec.Command("sh", "-ec", commands).Run()
	})
	for range 2 {
		if err := links.Prefer(t.Context(), "vips", parse("192.0.2.7", "2001:db8::7")); err != nil {
			t.Fatal(err)
		}
	}
	kerneltest.Do(t, netns, func() error {
		for to, want := range map[string]string{"10.96.0.1:80": "192.0.2.7", "[fd00::1]:80": "2001:db8::7"} {
			c, err := net.Dial("udp", to) // sends nothing
			if err != nil {
				return err
			}
			if from := c.LocalAddr().(*net.UDPAddr).IP.String(); from != want {
				t.Errorf("a connection to %s comes from %s, want %s", to, from, want)
			}
			_ = c.Close()
		}
		return nil
	})
}
