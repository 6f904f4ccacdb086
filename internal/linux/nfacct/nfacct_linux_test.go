package nfacct

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"testing"

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

func read(t *testing.T, o *Objects, name string) uint64 {
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
			o := New(netns)
			if err := o.Ensure(t.Context(), "discarded", "other"); err != nil {
				t.Fatal(err)
			}
			if got := read(t, o, "discarded"); got != 0 {
				t.Errorf("a new object has counted %d packets", got)
			}
			run(t, netns, "iptables-"+variant, "-A", "OUTPUT", "-p", "udp", "--dport", "9", "-m", "nfacct", "--nfacct-name",
				"discarded")
			send(t, netns, 3)
			if err := o.Ensure(t.Context(), "other", "discarded", "third"); err != nil {
				t.Fatalf("ensure existing objects: %v", err)
			}
			send(t, netns, 2)
			if got := read(t, o, "discarded"); got != 5 {
				t.Errorf("counted %d packets, want 5", got)
			}
			for _, name := range []string{"other", "third"} {
				if got := read(t, o, name); got != 0 {
					t.Errorf("%s, which no rule uses, has counted %d packets", name, got)
				}
			}
		})
	}
}

func TestObjectsBelongToANamespace(t *testing.T) {
	one, other := New(kerneltest.Namespace(t)), New(kerneltest.Namespace(t))
	if err := one.Ensure(t.Context(), "counter"); err != nil {
		t.Fatal(err)
	}
	read(t, one, "counter")
	if c, err := other.Read(t.Context(), "counter"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in another namespace: %d, %v, want fs.ErrNotExist", c, err)
	}
	if err := New(1<<20).Ensure(t.Context(), "counter"); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
}

func TestAvailable(t *testing.T) {
	netns := kerneltest.Namespace(t)
	o := New(netns)
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

// The kernel replies to a subsystem number that does not exist as a kernel without nfnetlink_acct does.
func TestAKernelWithoutTheSubsystem(t *testing.T) {
	const none = 0x3f
	o := &Objects{netns: kerneltest.Namespace(t), subsystem: none}
	_, readErr := o.Read(t.Context(), "counter")
	for what, err := range map[string]error{
		"Available": o.Available(t.Context()), "Ensure": o.Ensure(t.Context(), "counter"), "Read": readErr,
	} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want %v", what, err, ErrUnsupported)
		}
	}
}

func TestACancelledContext(t *testing.T) {
	o := New(kerneltest.Namespace(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Ensure(ctx, "counter"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := o.Read(t.Context(), "counter"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: %v, want that it was not created", err)
	}
}
