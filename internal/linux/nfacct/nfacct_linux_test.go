package nfacct

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func run(t *testing.T, netns int, argv ...string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
		return nil
	})
}

// send sends UDP datagrams of ten bytes to a closed port.
func send(t *testing.T, netns, datagrams int) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for range datagrams {
			if _, err := conn.WriteTo(make([]byte, 10), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}); err != nil {
				return err
			}
		}
		return nil
	})
}

func read(t *testing.T, o *Objects, name string) Count {
	t.Helper()
	c, err := o.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An object has the counts of its rule. Ensure for an existing object does not reset it.
func TestAnObjectCountsForARule(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			netns := kerneltest.Namespace(t)
			o := New(Options{NetNS: netns})
			if err := o.Ensure(t.Context(), "discarded", "other"); err != nil {
				t.Fatal(err)
			}
			if got := read(t, o, "discarded"); got != (Count{}) {
				t.Errorf("a new object has the count %+v", got)
			}
			run(t, netns, "iptables-"+variant, "-A", "OUTPUT", "-p", "udp", "--dport", "9", "-m", "nfacct", "--nfacct-name",
				"discarded")
			send(t, netns, 3)
			if err := o.Ensure(t.Context(), "other", "discarded", "third"); err != nil {
				t.Fatalf("ensure existing objects: %v", err)
			}
			send(t, netns, 2)
			const datagram = 20 + 8 + 10 // bytes, with its headers
			if got := read(t, o, "discarded"); got != (Count{Packets: 5, Bytes: 5 * datagram}) {
				t.Errorf("counted %+v, want 5 datagrams of %d bytes", got, datagram)
			}
			for _, name := range []string{"other", "third"} {
				if got := read(t, o, name); got != (Count{}) {
					t.Errorf("%s, which no rule uses, has the count %+v", name, got)
				}
			}
		})
	}
}

func TestObjectsBelongToANamespace(t *testing.T) {
	one, other := New(Options{NetNS: kerneltest.Namespace(t)}), New(Options{NetNS: kerneltest.Namespace(t)})
	if err := one.Ensure(t.Context(), "counter"); err != nil {
		t.Fatal(err)
	}
	read(t, one, "counter")
	if c, err := other.Read(t.Context(), "counter"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in another namespace: %+v, %v, want fs.ErrNotExist", c, err)
	}
	if err := New(Options{NetNS: 1 << 20}).Ensure(t.Context(), "counter"); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
}

func TestAvailable(t *testing.T) {
	netns := kerneltest.Namespace(t)
	o := New(Options{NetNS: netns})
	if err := o.Available(t.Context()); err != nil {
		t.Errorf("without objects: %v", err)
	}
	if err := o.Ensure(t.Context(), "one", "two"); err != nil {
		t.Fatal(err)
	}
	if err := o.Available(t.Context()); err != nil {
		t.Errorf("with two: %v", err)
	}
}

// The kernel replies to a subsystem number that does not exist as a kernel without
// nfnetlink_acct does.
func TestAKernelWithoutTheSubsystem(t *testing.T) {
	const none = 0x3f
	o := &Objects{opts: Options{NetNS: kerneltest.Namespace(t)}, subsystem: none}
	_, readErr := o.Read(t.Context(), "counter")
	for what, err := range map[string]error{
		"Available": o.Available(t.Context()), "Ensure": o.Ensure(t.Context(), "counter"), "Read": readErr,
	} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want %v", what, err, ErrUnsupported)
		}
	}
}

func TestInvalidNamesAreRejected(t *testing.T) {
	o := New(Options{NetNS: kerneltest.Namespace(t)})
	for _, name := range []string{"", strings.Repeat("n", nameMax)} {
		if err := o.Ensure(t.Context(), name); err == nil || !strings.Contains(err.Error(), "1 to 31 bytes") {
			t.Errorf("%q: %v", name, err)
		}
	}
	longest := strings.Repeat("n", nameMax-1)
	if err := o.Ensure(t.Context(), longest); err != nil {
		t.Fatal(err)
	}
	read(t, o, longest)
}

func TestACancelledContext(t *testing.T) {
	o := New(Options{NetNS: kerneltest.Namespace(t)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Ensure(ctx, "counter"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := o.Read(t.Context(), "counter"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: %v, want that it was not created", err)
	}
}

func TestATruncatedReplyIsAnError(t *testing.T) {
	whole := []byte{
		0, 0, 0, 0,
		7, 0, attrName, 0, 'n', 'o', 0, 0,
		12, 0, attrPackets, 0, 0, 0, 0, 0, 0, 0, 1, 2,
		12, 0, attrBytes, 0, 0, 0, 0, 0, 0, 0, 0, 3,
	}
	if name, c, err := decode(netlink.Message{Data: whole}); err != nil || name != "no" ||
		c != (Count{Packets: 258, Bytes: 3}) {
		t.Fatalf("%s, %+v, %v", name, c, err)
	}
	for n := range whole {
		if name, c, err := decode(netlink.Message{Data: whole[:n]}); err == nil {
			t.Errorf("%d bytes are decoded as %s, %+v", n, name, c)
		}
	}
}
