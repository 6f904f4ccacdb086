//go:build linux

package lab

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
)

func TestDoStaysAndComesBack(t *testing.T) {
	s := newTestLab(t, Options{})
	home := ownNamespace(t)
	sentinel := errors.New("inner")
	err := s.near.Do(func() error {
		outer := ownNamespace(t)
		err := s.far.Do(func() error {
			if ownNamespace(t) == outer || ownNamespace(t) == home {
				t.Error("nested Do did not change the namespace")
			}
			return sentinel
		})
		if ownNamespace(t) != outer || outer == home {
			t.Errorf("after a nested Do: %s, before %s, at home %s", ownNamespace(t), outer, home)
		}
		return err
	})
	if !errors.Is(err, sentinel) {
		t.Errorf("Do returned %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = s.near.Do(func() error { panic("inside") })
	}()
	if ownNamespace(t) != home {
		t.Errorf("now in %s, was in %s", ownNamespace(t), home)
	}
}

func ownNamespace(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink(threadNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Threads that the runtime creates while others are in a namespace must not start there.
func TestGoroutinesStayInTheOriginalNamespace(t *testing.T) {
	s := newTestLab(t, Options{})
	home := ownNamespace(t)
	var wait sync.WaitGroup
	for range 200 {
		wait.Go(func() {
			_ = s.near.Do(func() error { _, err := net.Interfaces(); return err })
			if got := ownNamespace(t); got != home {
				t.Errorf("a goroutine is in %s, home is %s", got, home)
			}
		})
		wait.Go(func() {
			if got := ownNamespace(t); got != home {
				t.Errorf("a goroutine started in %s, home is %s", got, home)
			}
		})
	}
	wait.Wait()
}

// Tests that prove by a tap that no packet left depend on it: a tap of another host captures forwarded packets.
func TestTapCapturesForwardedPackets(t *testing.T) {
	s := newTestLab(t, Options{})
	tap := s.Outside.Tap()
	for _, address := range []string{"1.2.3.4", "2001:db8:1234::1"} {
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			tap.Reset()
			nowhere := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
			if r := s.near.Try(Probe{Protocol: p, To: nowhere, Timeout: Soon}); r.Outcome != TimedOut {
				t.Errorf("%s to an unused address: %s", p, r)
			}
			arrived := tap.Count(func(x Packet) bool { return !x.Out && x.Protocol == p && x.Dst == nowhere })
			if arrived == 0 {
				t.Errorf("%s did not arrive outside: %s", p, tap.Packets())
			}
		}
	}
}
