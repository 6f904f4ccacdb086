package xtables_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// hold locks a file as iptables does, until the function it returns is called.
func hold(t *testing.T, path string) func() {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func TestWaitsForTheLockAndSaysWhoHasIt(t *testing.T) {
	h := newHost(t)
	h.load()
	all := removals(h.tables())
	free := hold(t, h.lock)
	defer free()
	impatient := xtables.New(xtables.Options{NetNS: h.netns, Lock: h.lock, Wait: 50 * time.Millisecond})

	err := impatient.Remove(t.Context(), all...)
	name, nameErr := os.ReadFile("/proc/self/comm")
	if nameErr != nil {
		t.Fatal(nameErr)
	}
	want := fmt.Sprintf("lock %s: held by %s (process %d) after 50ms", h.lock, strings.TrimSpace(string(name)), os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	left := removals(h.tables())
	for _, r := range left {
		if gone := r.Size() == 0; gone != (r.Table.Variant == xtables.NFT) {
			t.Errorf("%s is gone: %t; only the legacy variant has the lock", r.Table, gone)
		}
	}

	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := h.kernel().Remove(ctx, left...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}

	time.AfterFunc(50*time.Millisecond, free)
	if err := h.kernel().Remove(t.Context(), left...); err != nil {
		t.Errorf("remove when the lock is free again: %v", err)
	}
	for _, r := range removals(h.tables()) {
		if r.Size() != 0 {
			t.Errorf("left: %s", r)
		}
	}
}

// In a container without the host's /run, the file is not there and cannot be
// made.
func TestGoesOnWithoutTheLock(t *testing.T) {
	h := newHost(t)
	h.load()
	kernel := xtables.New(xtables.Options{NetNS: h.netns, Lock: filepath.Join(t.TempDir(), "missing", "lock")})
	if err := kernel.Remove(t.Context(), removals(h.tables())...); err != nil {
		t.Fatal(err)
	}
	for _, r := range removals(h.tables()) {
		if r.Size() != 0 {
			t.Errorf("left: %s", r)
		}
	}
}
