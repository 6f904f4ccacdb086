package netns_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

func here(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return name
}

// What runs there leaves the caller where it is.
// The name is that of the links in /proc.
func TestName(t *testing.T) {
	ns := kerneltest.Namespace(t)
	outside, err := netns.Name(0)
	if err != nil || outside != here(t) {
		t.Errorf("Name(0) = %q, %v, want %q", outside, err, here(t))
	}
	var inside string
	kerneltest.Do(t, ns, func() error {
		inside = here(t)
		return nil
	})
	if got, err := netns.Name(ns); err != nil || got != inside || got == outside {
		t.Errorf("Name = %q, %v, want %q", got, err, inside)
	}
	if got, err := netns.Name(1 << 20); err == nil {
		t.Errorf("a closed file descriptor has the name %q", got)
	}
}

func TestDo(t *testing.T) {
	outside := here(t)
	inside := ""
	if err := netns.Do(kerneltest.Namespace(t), func() error { inside = here(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == outside || inside == "" {
		t.Errorf("ran in %s, want another namespace than %s", inside, outside)
	}
	if now := here(t); now != outside {
		t.Errorf("the caller is in %s now, want %s", now, outside)
	}
	if err := netns.Do(0, func() error { inside = here(t); return nil }); err != nil || inside != outside {
		t.Errorf("with none named it ran in %s (%v), want %s", inside, err, outside)
	}
	wrong := errors.New("wrong")
	if err := netns.Do(0, func() error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("error %v, want that of the function", err)
	}
	if err := netns.Do(1<<20, func() error { return nil }); err == nil || !strings.Contains(err.Error(), "enter network namespace") {
		t.Errorf("error %v, want that there is no such namespace", err)
	}
}

// A handle sees the interfaces of its namespace.
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
		t.Errorf("interfaces %v, want those of a namespace made anew", names)
	}
	if _, err := netns.Handle(1<<20, unix.NETLINK_ROUTE); err == nil {
		t.Error("a handle in no namespace was opened")
	}
}
