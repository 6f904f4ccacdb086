//go:build linux

package lab

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// families maps an IPv4 address to one of each family.
var families = map[string]func(netip.Addr) netip.Addr{
	"IPv4": func(a netip.Addr) netip.Addr { return a },
	"IPv6": Analog,
}

// each runs a test for every family and the given protocols.
func each(t *testing.T, ps []Protocol, f func(t *testing.T, p Protocol, fam func(string) netip.Addr)) {
	for name, family := range families {
		for _, p := range ps {
			t.Run(fmt.Sprintf("%s/%s", name, p), func(t *testing.T) {
				f(t, p, func(a string) netip.Addr { return family(netip.MustParseAddr(a)) })
			})
		}
	}
}

func TestOutcomes(t *testing.T) {
	s := newTestLab(t, Options{Timeout: 3 * time.Second})
	rules := ""
	for family, prefix := range map[string][2]string{
		"ip": {"172.30.0.1", "172.30.0.2"}, "ip6": {"fd00:172:30::1", "fd00:172:30::2"},
	} {
		rules += fmt.Sprintf(`table %s lab {
			chain forward { type filter hook forward priority 0
				%[1]s daddr %[2]s reject
				%[1]s daddr %[3]s drop
			}
			chain output { type filter hook output priority 0
				%[1]s daddr %[2]s reject
				%[1]s daddr %[3]s drop
			}
		}
		`, family, prefix[0], prefix[1])
	}
	s.NodeA.Nft(rules)
	closed := map[Protocol]Outcome{TCP: Reset, UDP: Refused, SCTP: Reset}
	s.far.Serve(SCTP, 81) // starts the SCTP stack of its machine
	s.NodeA.Serve(SCTP, 81)
	for _, client := range []*Host{s.near, s.NodeA, s.Outside} {
		each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
			t.Run(client.Name(), func(t *testing.T) {
				checkOutcome(t, client, Probe{Protocol: p, To: netip.AddrPortFrom(fam("172.30.0.1"), 80)}, Refused)
				checkOutcome(t, client, Probe{Protocol: p, To: netip.AddrPortFrom(fam("172.30.0.2"), 80), Timeout: Soon}, TimedOut)
				checkOutcome(t, client, Probe{Protocol: p, To: netip.AddrPortFrom(fam("10.180.1.1"), 80)}, closed[p])
				checkOutcome(t, client, Probe{Protocol: p, To: netip.AddrPortFrom(fam("192.168.0.2"), 80)}, closed[p])
			})
		})
	}
}

func checkOutcome(t *testing.T, client *Host, p Probe, want Outcome) {
	t.Helper()
	r := client.Try(p)
	if r.Outcome != want {
		t.Errorf("%s from %s to %s: %s, want %s", p.Protocol, client.Name(), p.To, r, want)
	}
	if want != TimedOut && r.Took > 900*time.Millisecond {
		t.Errorf("%s from %s to %s: took %v", p.Protocol, client.Name(), p.To, r.Took)
	}
	if p.Protocol == UDP && !p.Unconnected {
		p.Unconnected = true
		checkOutcome(t, client, p, want)
	}
}

// A socket that does not connect knows its own address, and accepts no answer from another address than the one it asked.
func TestUnconnectedSockets(t *testing.T) {
	s := newTestLab(t, Options{Timeout: 3 * time.Second})
	s.far.Serve(UDP, 80)
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			far, near := s.far.Addr(family(netip.IPv4Unspecified())), s.near.Addr(family(netip.IPv4Unspecified()))
			f, r := s.near.Open(Probe{Protocol: UDP, To: netip.AddrPortFrom(far, 80), Unconnected: true})
			if f == nil {
				t.Fatal(r)
			}
			defer f.Close()
			for range 2 {
				r := f.Ask([]byte("question"))
				if r.Outcome != Answered || !r.Echoed || r.Backend.Addr() != far || r.Source.Addr() != near || r.Local != r.Source {
					t.Errorf("%s, its own address is %s; want an answer of %s to %s", r, r.Local, far, near)
				}
			}
			if err := f.socket.write([]byte("question"), time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			f.socket.peer = netip.AddrPortFrom(f.socket.peer.Addr(), 81)
			if _, err := f.socket.read(make([]byte, 100), time.Now().Add(3*time.Second)); err == nil || !strings.Contains(err.Error(), "came from "+f.probe.To.String()) {
				t.Errorf("the error for an answer of another port is %v", err)
			}
		})
	}
}

func TestHostWithoutSCTPAnswersUnreachable(t *testing.T) {
	s := newTestLab(t, Options{})
	each(t, []Protocol{SCTP}, func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		checkOutcome(t, s.near, Probe{Protocol: p, To: netip.AddrPortFrom(fam("10.180.1.1"), 80)}, Unreachable)
	})
}

func TestPing(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Nft(`table inet lab { chain forward { type filter hook forward priority 0
		ip daddr 10.180.1.1 reject
		ip6 daddr fd00:10:180:1::1 reject
	}
	}`)
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			out := family(netip.MustParseAddr("203.0.113.2"))
			if r := s.near.Ping(out); r.Outcome != Answered || r.Backend.Addr() != out {
				t.Errorf("ping %s: %s", out, r)
			}
			if r := s.near.Ping(family(netip.MustParseAddr("10.180.1.1"))); r.Outcome != Refused {
				t.Errorf("ping of a rejected address: %s", r)
			}
			unused := s.near.Try(Probe{
				Protocol: Echo, Timeout: Soon,
				To: netip.AddrPortFrom(family(netip.MustParseAddr("198.51.100.1")), 0),
			})
			if unused.Outcome != TimedOut {
				t.Errorf("ping of an unused address: %s", unused)
			}
		})
	}
}

func TestTranslatedServices(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Nft(service("ip", "172.30.0.41", "10.180.0.1") + service("ip6", "fd00:172:30::41", "fd00:10:180::1"))
	for _, p := range protocols {
		s.near.Serve(p, 8080)
	}
	other := s.Pod(s.NodeA, "10.180.0.2", "fd00:10:180::2")
	clients := map[*Host]bool{s.near: true, other: false, s.NodeA: true, s.Outside: false} // masqueraded
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		for client, masqueraded := range clients {
			r := client.Dial(p, netip.AddrPortFrom(fam("172.30.0.41"), 80))
			if r.Outcome != Answered || r.Backend != netip.AddrPortFrom(fam("10.180.0.1"), 8080) {
				t.Errorf("from %s: %s", client.Name(), r)
				continue
			}
			want := client.Addr(fam("10.0.0.0"))
			if masqueraded {
				want = s.NodeA.Addr(want)
			}
			if r.Source.Addr() != want {
				t.Errorf("from %s: backend saw %s, want %s", client.Name(), r.Source, want)
			}
		}
	})
}

// service sends VIP port 80 to port 8080 of a pod, which sees the node when it
// or the node is the client.
func service(family, vip, pod string) string {
	return fmt.Sprintf(`table %[1]s lab {
		chain pre { type nat hook prerouting priority -100
			%[1]s daddr %[2]s meta l4proto { tcp, udp, sctp } th dport 80 dnat to %[3]s : 8080
		}
		chain out { type nat hook output priority -100
			%[1]s daddr %[2]s meta l4proto { tcp, udp, sctp } th dport 80 dnat to %[3]s : 8080
		}
		chain post { type nat hook postrouting priority 100
			%[1]s saddr %[3]s ct status dnat masquerade
			fib saddr type local masquerade
		}
	}
	`, family, vip, pod)
}

// The client's address is kept although the backend is on another node.
func TestTranslatedToAnotherNode(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Nft(service("ip", "172.30.0.41", "10.180.1.1") + service("ip6", "fd00:172:30::41", "fd00:10:180:1::1"))
	for _, p := range protocols {
		s.far.Serve(p, 8080)
	}
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		for _, client := range []*Host{s.near, s.Outside, s.Blocked} {
			r := client.Dial(p, netip.AddrPortFrom(fam("172.30.0.41"), 80))
			if r.Backend != netip.AddrPortFrom(fam("10.180.1.1"), 8080) || r.Source.Addr() != client.Addr(r.Source.Addr()) {
				t.Errorf("from %s: %s", client.Name(), r)
			}
		}
	})
}

func TestPayloads(t *testing.T) {
	s := newTestLab(t, Options{})
	for _, p := range protocols {
		s.far.Serve(p, 80)
	}
	size := map[Protocol]int{TCP: 4 << 20, UDP: 60000, SCTP: 30000}
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		payload := bytes.Repeat([]byte("0123456789"), size[p]/10)
		r := s.near.Try(Probe{Protocol: p, To: netip.AddrPortFrom(fam("10.180.1.1"), 80), Payload: payload})
		if r.Outcome != Answered || !r.Echoed {
			t.Errorf("%d bytes: %s, whole: %t", len(payload), r, r.Echoed)
		}
	})
}

func TestChosenSource(t *testing.T) {
	s := newTestLab(t, Options{})
	for _, p := range protocols {
		s.near.Serve(p, 80)
	}
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		to := netip.AddrPortFrom(fam("10.180.0.1"), 80)
		for _, want := range []netip.AddrPort{
			netip.AddrPortFrom(fam("192.168.1.2"), 0),
			netip.AddrPortFrom(fam("192.168.0.2"), 4711),
			netip.AddrPortFrom(netip.Addr{}, 4712),
		} {
			r := s.NodeA.Try(Probe{Protocol: p, To: to, From: want})
			if want.Addr().IsValid() && r.Source.Addr() != want.Addr() ||
				want.Port() != 0 && r.Source.Port() != want.Port() {
				t.Errorf("from %s: %s", want, r)
			}
		}
		if r := s.Blocked.Dial(p, to); r.Source.Addr() != fam("203.0.113.130") {
			t.Errorf("from the blocked client: %s", r)
		}
	})
}

func TestFlowsStayOpen(t *testing.T) {
	s := newTestLab(t, Options{})
	vip := map[Protocol]*Server{}
	for _, p := range protocols {
		vip[p] = s.near.Serve(p, 8080)
	}
	rules := service("ip", "172.30.0.41", "10.180.0.1") + service("ip6", "fd00:172:30::41", "fd00:10:180::1")
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		s.NodeA.Nft(rules)
		to := netip.AddrPortFrom(fam("172.30.0.41"), 80)
		f, r := s.Outside.Open(Probe{Protocol: p, To: to})
		if f == nil {
			t.Fatal(r)
		}
		defer f.Close()
		first := f.Ask([]byte("before"))
		s.NodeA.Nft("flush chain ip lab pre; flush chain ip6 lab pre")
		second := f.Ask([]byte("after"))
		if first.Outcome != Answered || second.Outcome != Answered || first.Source != second.Source {
			t.Errorf("before: %s; after the rules were deleted: %s", first, second)
		}
		if r := s.Outside.Try(Probe{Protocol: p, To: to, Timeout: Soon}); r.Outcome != TimedOut {
			t.Errorf("a new client: %s", r)
		}
		s.NodeA.Nft("delete table ip lab; delete table ip6 lab")
	})
	for p, server := range vip {
		if server.Count() == 0 {
			t.Errorf("%s server counted no client", p)
		}
	}
}

func TestClosedServer(t *testing.T) {
	s := newTestLab(t, Options{})
	each(t, []Protocol{TCP, UDP, SCTP}, func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		to := netip.AddrPortFrom(fam("10.180.1.1"), 80)
		server := s.far.Serve(p, 80)
		checkOutcome(t, s.near, Probe{Protocol: p, To: to}, Answered)
		server.Close()
		if r := s.near.Dial(p, to); r.Outcome == Answered {
			t.Errorf("closed, but %s", r)
		}
	})
}
