//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

func TestForEndsWithItsTest(t *testing.T) {
	l := New(t, Options{})
	for round := range 3 { // the same addresses each time
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			l := l.For(t)
			web := l.Pod(l.NodeB, "10.180.0.1", "fd00:10:180::1")
			for _, p := range protocols {
				web.Serve(p, 80)
				l.NodeA.Serve(p, 80)
			}
			for _, a := range append(web.Addrs(), l.NodeA.Addrs()...) {
				checkReaches(t, l.Outside, TCP, netip.AddrPortFrom(a, 80))
				checkReaches(t, l.Outside, SCTP, netip.AddrPortFrom(a, 80))
			}
		})
	}
	to := netip.MustParseAddrPort("10.180.0.1:80")
	if r := l.Outside.Try(Probe{Protocol: TCP, To: to, Timeout: Soon}); r.Outcome == Answered {
		t.Errorf("the pod of an ended test: %s", r)
	}
}

func TestLabsCoexist(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			s := newTestLab(t, Options{})
			s.near.Serve(TCP, 80)
			checkReaches(t, s.Outside, TCP, netip.MustParseAddrPort("10.180.0.1:80"))
		})
	}
}

func TestBridgedPods(t *testing.T) {
	s := newTestLab(t, Options{Bridge: "cbr0"})
	other := s.Pod(s.NodeA, "10.180.0.2", "fd00:10:180::2")
	for _, p := range protocols {
		other.Serve(p, 80)
		for _, to := range other.Addrs() {
			for _, client := range s.hosts() {
				checkReaches(t, client, p, netip.AddrPortFrom(to, 80))
			}
		}
	}
	s.NodeA.Nft(`table inet lab { chain pre { type filter hook prerouting priority 0
		iifname "cbr0" ip saddr 10.180.0.1 tcp dport 80 counter
		}
	}`)
	checkReaches(t, s.near, TCP, netip.MustParseAddrPort("10.180.0.2:80"))
	if out := s.NodeA.MustRun("nft", "list", "ruleset"); strings.Contains(out, "packets 0") {
		t.Errorf("no packet came in on the bridge:\n%s", out)
	}
}

func TestThirdNode(t *testing.T) {
	s := newTestLab(t, Options{})
	c := s.Node("node-c", "192.168.0.4", "2001:db8::4")
	for _, h := range []*Host{s.near, s.far, c} {
		h.Serve(UDP, 80)
	}
	for _, h := range []*Host{s.near, s.far} {
		for _, a := range h.Addrs() {
			checkReaches(t, c, UDP, netip.AddrPortFrom(a, 80))
		}
		for _, a := range c.Addrs() {
			checkReaches(t, h, UDP, netip.AddrPortFrom(a, 80))
		}
	}
}

func TestAddressesAreAddedAndRemoved(t *testing.T) {
	s := newTestLab(t, Options{})
	for _, h := range s.hosts() {
		h.Serve(TCP, 80)
		h.Serve(UDP, 80)
	}
	for i, h := range s.hosts() {
		for _, text := range []string{"198.51.100.%d", "2001:db8:42::%d"} {
			a := netip.MustParseAddr(fmt.Sprintf(text, i+1))
			to := netip.AddrPortFrom(a, 80)
			h.AddAddr(a)
			for _, client := range s.hosts() {
				checkReaches(t, client, TCP, to)
				checkReaches(t, client, UDP, to)
			}
			h.DelAddr(a)
			client := s.far
			if h == s.far {
				client = s.near
			}
			if r := client.Try(Probe{Protocol: UDP, To: to, Timeout: Soon}); r.Outcome == Answered {
				t.Errorf("address %s of %s was removed, but %s", a, h.Name(), r)
			}
		}
	}
}

func TestLinksAreAddedAndRemoved(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Serve(TCP, 80)
	addrs := parse("198.51.100.7", "2001:db8:42::7")
	for range 2 {
		s.NodeA.AddLink("extra0", addrs...)
		for _, a := range addrs {
			checkReaches(t, s.Outside, TCP, netip.AddrPortFrom(a, 80))
		}
		s.NodeA.DelLink("extra0")
	}
	for _, a := range addrs {
		r := s.Outside.Try(Probe{Protocol: TCP, To: netip.AddrPortFrom(a, 80), Timeout: Soon})
		if r.Outcome == Answered {
			t.Errorf("the interface was deleted, but %s", r)
		}
	}
}

func TestTapCapturesForwardedPackets(t *testing.T) {
	s := newTestLab(t, Options{})
	tap := s.Outside.Tap()
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			tap.Reset()
			nowhere := netip.AddrPortFrom(family(netip.MustParseAddr("1.2.3.4")), 80)
			for _, p := range protocols {
				if r := s.near.Try(Probe{Protocol: p, To: nowhere, Timeout: Soon}); r.Outcome != TimedOut {
					t.Errorf("%s to an unused address: %s", p, r)
				}
				arrived := tap.Count(func(x Packet) bool { return !x.Out && x.Protocol == p && x.Dst == nowhere })
				if arrived == 0 {
					t.Errorf("%s did not arrive outside: %s", p, tap.Packets())
				}
			}
			if n := tap.Count(func(x Packet) bool { return x.Out && x.Dst == nowhere }); n != 0 {
				t.Errorf("%d packets looped: %s", n, tap.Packets())
			}
		})
	}
}

func TestProgramsRunOnTheirHost(t *testing.T) {
	s := newTestLab(t, Options{})
	if out := s.near.MustRun("ip", "-o", "addr"); !strings.Contains(out, "10.180.0.1/32") {
		t.Errorf("addresses of the pod: %s", out)
	}
	if _, err := s.NodeA.Run("", "sh", "-c", "echo so; exit 3"); err == nil || !strings.Contains(err.Error(), "so") {
		t.Errorf("a failing program: %v", err)
	}
	wait, err := s.NodeA.Start(exec.Command("sleep", "0.01"))
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
	if _, err := s.NodeA.Start(exec.Command("/no/such/program")); err == nil {
		t.Error("no error for a program that does not exist")
	}
	for _, tool := range [][]string{{"iptables", "-t", "nat", "-S"}, {"ip6tables", "-S"}, {"conntrack", "-L"}} {
		s.NodeA.MustRun(tool...)
	}
	s.NodeA.Sysctl("net/netfilter/nf_conntrack_udp_timeout", "7")
}

func TestAnalog(t *testing.T) {
	for in, want := range map[string]string{
		"10.180.0.1": "fd00:10:180::1", "10.180.2.1": "fd00:10:180:2::1",
		"172.30.0.41": "fd00:172:30::41", "203.0.113.130": "2001:db8:113::130",
		"192.168.0.2": "2001:db8::1", "192.168.1.2": "2001:db8:1::2", "127.0.0.1": "::1",
	} {
		if got := Analog(netip.MustParseAddr(in)); got != netip.MustParseAddr(want) {
			t.Errorf("Analog(%s) = %s, want %s", in, got, want)
		}
	}
}

func BenchmarkDial(b *testing.B) {
	l := New(b, Options{})
	web, client := l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1"), l.Pod(l.NodeA, "10.180.0.2")
	for _, p := range protocols {
		web.Serve(p, 80)
		b.Run(p.String(), func(b *testing.B) {
			for b.Loop() {
				if r := client.Dial(p, netip.MustParseAddrPort("10.180.0.1:80")); r.Outcome != Answered {
					b.Fatal(r)
				}
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		New(shortLived{b, new([]func())}, Options{}).t.(shortLived).end()
	}
}

// shortLived is a T whose end the test controls.
type shortLived struct {
	T
	cleanups *[]func()
}

func (s shortLived) Cleanup(f func()) { *s.cleanups = append(*s.cleanups, f) }

func (s shortLived) end() {
	for i := range *s.cleanups {
		(*s.cleanups)[len(*s.cleanups)-1-i]()
	}
}

func TestProgramsEndWithTheirTest(t *testing.T) {
	s := newTestLab(t, Options{})
	sleep := exec.Command("sleep", "600")
	t.Run("inner", func(t *testing.T) {
		if _, err := s.NodeA.For(t).Start(sleep); err != nil {
			t.Fatal(err)
		}
	})
	if sleep.ProcessState == nil {
		t.Error("the program outlived its test")
	}
}
