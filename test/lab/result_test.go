//go:build linux

package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOutcomeOfAnError(t *testing.T) {
	icmp := func(origin, kind, code uint8) error {
		return &icmpError{origin: origin, ICMP: ICMP{Type: kind, Code: code}, errno: unix.ECONNREFUSED}
	}
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, Answered},
		{errTimeout, TimedOut},
		{unix.ECONNREFUSED, Reset},
		{unix.ECONNRESET, Reset},
		{errAbort, Reset},
		{unix.EADDRINUSE, Failed},
		{errors.New("odd"), Failed},
		{icmp(unix.SO_EE_ORIGIN_ICMP, 3, 3), Refused},
		{icmp(unix.SO_EE_ORIGIN_ICMP, 3, 1), Unreachable},
		{icmp(unix.SO_EE_ORIGIN_ICMP, 11, 0), Unreachable},
		{icmp(unix.SO_EE_ORIGIN_ICMP6, 1, 4), Refused},
		{icmp(unix.SO_EE_ORIGIN_ICMP6, 1, 3), Unreachable},
		{icmp(unix.SO_EE_ORIGIN_ICMP6, 3, 3), Unreachable},
	} {
		if got := outcomeOf(c.err); got.Outcome != c.want {
			t.Errorf("%v is %s, want %s", c.err, got.Outcome, c.want)
		}
		if c.err == nil {
			continue
		}
		if got := outcomeOf(fmt.Errorf("around: %w", c.err)); got.Outcome != c.want || !strings.Contains(got.String(), c.want.String()) {
			t.Errorf("wrapped %v is %s, want %s", c.err, got, c.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	backend, client := netip.MustParseAddrPort("[::ffff:10.0.0.1]:80"), netip.MustParseAddrPort("[fe80::1%eth0]:7")
	r, rest, ok := readIdentity(append(identity(backend, client), "more"...))
	if !ok || string(rest) != "more" || r.Backend.String() != "10.0.0.1:80" || r.Source.String() != "[fe80::1]:7" {
		t.Errorf("read %v %q %t", r, rest, ok)
	}
	for _, bad := range []string{"", "10.0.0.1:80 10.0.0.2:7", "10.0.0.1:80\n", "x y\n", "10.0.0.1:80 y\n"} {
		if r, _, ok := readIdentity([]byte(bad)); ok {
			t.Errorf("%q was read as %v", bad, r)
		}
	}
}

func TestManyProbes(t *testing.T) {
	s := newTestLab(t, Options{})
	web := netip.MustParseAddrPort("10.180.0.1:80")
	s.near.Serve(TCP, 80)
	answered := s.NodeB.Repeat(50, Probe{Protocol: TCP, To: web})
	if got, want := Spread(answered), map[netip.AddrPort]int{web: 50}; !maps.Equal(got, want) {
		t.Errorf("spread %v, want %v", got, want)
	}
	var probes []Probe
	for range 20 {
		probes = append(probes, Probe{Protocol: TCP, To: web},
			Probe{Protocol: UDP, To: netip.MustParseAddrPort("1.2.3.4:80"), Timeout: Soon})
	}
	start := time.Now()
	all := s.far.TryAll(probes...)
	if took := time.Since(start); took > 10*Soon {
		t.Errorf("20 time-outs at the same time took %v", took)
	}
	if got, want := Outcomes(all), map[Outcome]int{Answered: 20, TimedOut: 20}; !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	if all[0].Outcome != Answered || all[1].Outcome != TimedOut {
		t.Errorf("out of order: %s, %s", all[0], all[1])
	}
}

func TestARefusalNamesTheHostThatRefused(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Nft(`table inet lab { chain forward { type filter hook forward priority 0
		meta nfproto ipv4 reject with icmp type host-unreachable
		meta nfproto ipv6 reject with icmpv6 type admin-prohibited
		}
	}`)
	each(t, protocols[:], func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		r := s.near.Dial(p, netip.AddrPortFrom(fam("10.180.1.1"), 80))
		if r.Outcome != Unreachable || !slices.Contains(s.NodeA.Addrs(), r.ICMP.From) {
			t.Errorf("%s", r)
		}
		kind := map[bool]ICMP{true: {Type: 3, Code: 1}, false: {Type: 1, Code: 1}}[r.ICMP.From.Is4()]
		if r.ICMP.Type != kind.Type || r.ICMP.Code != kind.Code {
			t.Errorf("ICMP type %d code %d, want %d and %d", r.ICMP.Type, r.ICMP.Code, kind.Type, kind.Code)
		}
	})
}

func TestMasqueraded(t *testing.T) {
	local := netip.MustParseAddrPort("10.0.0.1:7")
	for source, want := range map[string]bool{"10.0.0.1:7": false, "10.0.0.1:8": false, "192.168.0.2:7": true} {
		r := Result{Local: local, Source: netip.MustParseAddrPort(source)}
		if got := r.Masqueraded(); got != want {
			t.Errorf("seen as %s: %t, want %t", source, got, want)
		}
	}
}

func TestParsePacket(t *testing.T) {
	for _, pair := range [][2]string{{"10.0.0.1:7", "10.0.0.2:80"}, {"[fd00::1]:7", "[fd00::2]:80"}} {
		src, dst := netip.MustParseAddrPort(pair[0]), netip.MustParseAddrPort(pair[1])
		for _, p := range []Protocol{TCP, UDP} {
			b := Segment{Protocol: p, Src: src, Dst: dst, Payload: []byte("abc")}.Packet()
			got, ok := parsePacket(b)
			if !ok || got.Protocol != p || got.Src != src || got.Dst != dst || got.Length != len(b) {
				t.Errorf("%s %s > %s was read as %s", p, src, dst, got)
			}
			for n := range ip4Header {
				if got, ok := parsePacket(b[:n]); ok {
					t.Errorf("%d bytes were parsed as %s", n, got)
				}
			}
		}
	}
	fragment := Segment{
		Protocol: UDP, Src: netip.MustParseAddrPort("10.0.0.1:7"), Dst: netip.MustParseAddrPort("10.0.0.2:80"),
	}.Packet()
	fragment[7] = 1 // offset
	if got, ok := parsePacket(fragment); !ok || got.Dst.Port() != 0 {
		t.Errorf("a later fragment was parsed as %s", got)
	}
}

// Kernels rate-limit ICMP errors; tests need all of them.
func TestEveryRefusalArrives(t *testing.T) {
	s := newTestLab(t, Options{Timeout: time.Second})
	s.NodeA.Nft("table inet lab { chain forward { type filter hook forward priority 0; reject; }; }")
	each(t, []Protocol{UDP}, func(t *testing.T, p Protocol, fam func(string) netip.Addr) {
		results := s.near.Repeat(1000, Probe{Protocol: p, To: netip.AddrPortFrom(fam("10.180.1.1"), 80)})
		if got := Outcomes(results); got[Refused] != len(results) {
			t.Errorf("outcomes %v", got)
		}
	})
}
