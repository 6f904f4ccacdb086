package netns_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func current(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return name
}

// Name returns the target of the namespace's link in /proc.
func TestName(t *testing.T) {
	ns := kerneltest.Namespace(t)
	outside, err := netns.Name(0)
	if err != nil || outside != current(t) {
		t.Errorf("Name(0) = %q, %v, want %q", outside, err, current(t))
	}
	var inside string
	kerneltest.Do(t, ns, func() error {
		inside = current(t)
		return nil
	})
	if got, err := netns.Name(ns); err != nil || got != inside || got == outside {
		t.Errorf("Name = %q, %v, want %q", got, err, inside)
	}
	if got, err := netns.Name(1 << 20); err == nil {
		t.Errorf("a closed file descriptor has the name %q", got)
	}
}

// Do runs the function in the namespace, and does not change that of the caller.
func TestDo(t *testing.T) {
	outside := current(t)
	inside := ""
	if err := netns.Do(kerneltest.Namespace(t), func() error { inside = current(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == outside || inside == "" {
		t.Errorf("ran in %s, want another namespace than %s", inside, outside)
	}
	if now := current(t); now != outside {
		t.Errorf("the caller is in %s now, want %s", now, outside)
	}
	if err := netns.Do(0, func() error { inside = current(t); return nil }); err != nil || inside != outside {
		t.Errorf("with descriptor 0 it ran in %s (%v), want %s", inside, err, outside)
	}
	failed := errors.New("failed")
	if err := netns.Do(0, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v, want that of the function", err)
	}
	if err := netns.Do(1<<20, func() error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "enter network namespace") {
		t.Errorf("error %v, want an error about the namespace", err)
	}
}

// A handle lists the interfaces of its namespace.
func TestHandle(t *testing.T) {
	h, err := netns.Handle(kerneltest.Namespace(t), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, l := range links {
		names[l.Attrs().Name] = true
	}
	if !names["lo"] || names["eth0"] {
		t.Errorf("interfaces %v, want those of a new namespace", names)
	}
	if _, err := netns.Handle(1<<20, unix.NETLINK_ROUTE); err == nil {
		t.Error("a handle was opened in a namespace that does not exist")
	}
}
