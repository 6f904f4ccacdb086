package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func parse(addrs ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// bridge creates an interface in place of the dummy interface of kube-proxy's mode ipvs:
// not all kernels support dummy interfaces.
func bridge(t *testing.T, netns int, addrs ...string) *Links {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		commands := [][]string{{"ip", "link", "add", "vips", "type", "bridge"}}
		for _, a := range addrs {
			commands = append(commands, []string{"ip", "addr", "add", a, "dev", "vips", "nodad"})
		}
		for _, c := range commands {
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", c, err, out)
			}
		}
		return nil
	})
	return New(netns)
}

func TestAddressesAreListedAndRemovedAndTheInterfaceDeleted(t *testing.T) {
	links := bridge(t, kerneltest.Namespace(t), "10.96.0.10/32", "10.96.0.1/32", "fd00::1/128")
	check := func(want ...string) {
		t.Helper()
		got, err := links.Addresses(t.Context(), "vips")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(parse(want...), got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	}
	check("10.96.0.1", "10.96.0.10", "fd00::1")
	for range 2 { // the second removal has no effect
		if err := links.RemoveAddresses(t.Context(), "vips", parse("10.96.0.10", "fd00::1")); err != nil {
			t.Fatal(err)
		}
	}
	check("10.96.0.1")
	for range 2 {
		if err := links.Delete(t.Context(), "vips"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := links.Addresses(t.Context(), "vips"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after deletion: %v, want %v", err, ErrNotFound)
	}
	if err := links.RemoveAddresses(t.Context(), "vips", parse("10.96.0.1")); err != nil {
		t.Errorf("remove an address from a deleted interface: %v", err)
	}
}

// waitForAddresses waits until no address is tentative: the kernel makes addresses usable
// with a delay, even without duplicate address detection.
func waitForAddresses() error {
	for range 500 {
		out, err := exec.Command("ip", "-6", "addr", "show", "scope", "global", "tentative").CombinedOutput()
		if err != nil || len(out) == 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("addresses stay tentative")
}

// kube-proxy leaves its interface down.
func TestProgramsUsePreferredSourceAddresses(t *testing.T) {
	for _, state := range []string{"up", "down"} {
		t.Run(state, func(t *testing.T) { testPreferredSources(t, state) })
	}
}

func testPreferredSources(t *testing.T, state string) {
	t.Helper()
	netns := kerneltest.Namespace(t)
	links := bridge(t, netns, "10.96.0.10/32", "fd00::1/128")
	kerneltest.Do(t, netns, func() error {
		for _, c := range [][]string{
			{"ip", "link", "set", "vips", state},
			{"ip", "addr", "add", "192.0.2.7/32", "dev", "lo"},
			{"ip", "addr", "add", "2001:db8::7/128", "dev", "lo"},
		} {
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", c, err, out)
			}
		}
		return waitForAddresses()
	})
	sources := func() (got []netip.Addr) {
		t.Helper()
		kerneltest.Do(t, netns, func() error {
			for _, to := range []string{"10.96.0.10:80", "[fd00::1]:80"} {
				c, err := net.Dial("udp", to) // sends nothing
				if err != nil {
					return err
				}
				got = append(got, netip.MustParseAddrPort(c.LocalAddr().String()).Addr())
				_ = c.Close()
			}
			return nil
		})
		return got
	}
	same := cmpopts.EquateComparable(netip.Addr{})
	if diff := cmp.Diff(parse("10.96.0.10", "fd00::1"), sources(), same); diff != "" {
		t.Fatalf("unexpected source addresses before Prefer (-want +got):\n%s", diff)
	}
	want := parse("192.0.2.7", "2001:db8::7")
	for range 2 {
		if err := links.Prefer(t.Context(), "vips", want); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, sources(), same); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}

	if err := links.RemoveAddresses(t.Context(), "vips", parse("10.96.0.10", "fd00::1")); err != nil {
		t.Fatal(err)
	}
	kerneltest.Do(t, netns, func() error {
		for _, family := range []string{"-4", "-6"} {
			out, err := exec.Command("ip", family, "route", "show", "table", "local", "dev", "vips").CombinedOutput()
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "local 10.96") || strings.HasPrefix(line, "local fd00::1") {
					t.Errorf("a route is left: %s", line)
				}
			}
		}
		return nil
	})
}

func TestTheLoopbackInterfaceCannotBeDeleted(t *testing.T) {
	if err := New(kerneltest.Namespace(t)).Delete(t.Context(), "lo"); err == nil {
		t.Error("no error")
	}
}
