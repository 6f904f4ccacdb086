//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
)

func TestNetlinkOpensInTheNamespace(t *testing.T) {
	s := newTestLab(t, Options{})
	c, err := nftables.New(nftables.WithNetNSFd(s.NodeA.NetNSFD()))
	if err != nil {
		t.Fatal(err)
	}
	c.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	for h, want := range map[*Host]bool{s.NodeA: true, s.NodeB: false} {
		if got := strings.Contains(h.MustRun("nft", "list", "tables"), "probe"); got != want {
			t.Errorf("table on %s: %t, want %t", h.Name(), got, want)
		}
	}
}

func TestNamespaceHasAPath(t *testing.T) {
	s := newTestLab(t, Options{})
	out, err := exec.Command("nsenter", "--net="+s.near.NetNSPath(), "ip", "-o", "addr").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.180.0.1/32") {
		t.Errorf("through the path: %v\n%s", err, out)
	}
}

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

func TestInterfaceNames(t *testing.T) {
	s := newTestLab(t, Options{VethPrefix: "cali"})
	if got := s.near.Interface(); !strings.HasPrefix(got, "cali") || len(got) > 15 {
		t.Errorf("the pod is behind %q", got)
	}
	s.NodeA.MustRun("ip", "link", "show", s.near.Interface())
	s.NodeA.MustRun("ip", "link", "show", s.NodeA.Interface())
	s.Outside.MustRun("ip", "link", "show", s.Outside.Interface())
}

func TestRoutesAreRemovedAfterTheTest(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeB.Serve(TCP, 80)
	vip := netip.MustParsePrefix("1.2.3.4/32")
	t.Run("routed to node B", func(t *testing.T) {
		s.NodeB.For(t).AddAddr(vip.Addr())
		s.NodeA.For(t).Route(vip, s.NodeB.Addr4())
		checkReaches(t, s.near, TCP, netip.AddrPortFrom(vip.Addr(), 80))
	})
	if out := s.NodeA.MustRun("ip", "route"); strings.Contains(out, "1.2.3.4") {
		t.Errorf("the route is still there:\n%s", out)
	}
}

// failureRecorder is a T that records its failure.
type failureRecorder struct {
	testing.TB
	got *string
}

func (w failureRecorder) Helper() {}

func (w failureRecorder) Fatalf(format string, args ...any) {
	*w.got = fmt.Sprintf(format, args...)
	panic(w.got)
}

// failureOf runs f, which must fail, and returns the message.
func failureOf(t *testing.T, f func(T)) string {
	t.Helper()
	got := new(string)
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(got) {
				panic(r)
			}
		}()
		f(failureRecorder{t, got})
	}()
	if *got == "" {
		t.Error("no failure was reported")
	}
	return *got
}

func TestMistakesAreReported(t *testing.T) {
	s := newTestLab(t, Options{})
	s.near.Serve(TCP, 80)
	s.near.Serve(SCTP, 80)
	strange := netip.MustParseAddr("9.9.9.9")
	for want, f := range map[string]func(T){
		"a pod needs an address":           func(t T) { s.For(t).Pod(s.NodeA) },
		"address already in use":           func(t T) { s.near.For(t).Serve(TCP, 80) },
		"sctp port 80 on pod-10.180.0.1":   func(t T) { s.near.For(t).Serve(SCTP, 80) },
		"no server for":                    func(t T) { s.near.For(t).Serve(Echo, 80) },
		"add address":                      func(t T) { s.NodeA.For(t).AddAddr(s.NodeA.Addrs()[2]) },
		"take 9.9.9.9 from node-a":         func(t T) { s.NodeA.For(t).DelAddr(strange) },
		"find nil of node-a":               func(t T) { s.NodeA.For(t).DelLink("nil") },
		"not neighbours":                   func(t T) { s.near.For(t).Inject(s.far, []byte{4 << 4}) },
		"run nft -f - on node-a":           func(t T) { s.NodeA.For(t).Nft("nonsense") },
		"run false on node-a":              func(t T) { s.NodeA.For(t).MustRun("false") },
		"set sysctl":                       func(t T) { s.NodeA.For(t).Sysctl("net/nonsense", "1") },
		"add interface eth0 to node-a":     func(t T) { s.NodeA.For(t).AddLink("eth0") },
		"route 9.9.9.9/32 of pod-10.180.0": func(t T) { s.near.For(t).Route(hostPrefix(strange), netip.IPv6Unspecified()) },
	} {
		t.Run(want, func(t *testing.T) {
			if got := failureOf(t, f); !strings.Contains(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
