//go:build linux

package lab

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

func TestInjectedPacketsArrive(t *testing.T) {
	s := newTestLab(t, Options{})
	for _, client := range []*Host{s.near, s.NodeB, s.Outside} {
		each(t, []Protocol{UDP}, func(t *testing.T, _ Protocol, fam func(string) netip.Addr) {
			server := s.NodeA.For(t).Serve(UDP, 80)
			tap := client.For(t).Tap()
			segment := Segment{
				Protocol: UDP, Payload: []byte("odd"),
				Src: netip.AddrPortFrom(client.Addr(fam("10.0.0.0")), 4711),
				Dst: netip.AddrPortFrom(fam("192.168.0.2"), 80),
			}
			client.Inject(s.NodeA, segment.Packet())
			answered := func() bool {
				return tap.Count(func(x Packet) bool { return !x.Out && x.Src == segment.Dst && x.Dst == segment.Src }) > 0
			}
			if !eventually(answered) || server.Count() != 1 {
				t.Errorf("from %s: server saw %d, client %s", client.Name(), server.Count(), tap.Packets())
			}
		})
	}
}

func TestInjectedMartian(t *testing.T) {
	s := newTestLab(t, Options{})
	server := s.NodeA.Serve(UDP, 80)
	s.NodeA.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	for _, dst := range []string{"127.0.0.1:80", "192.168.0.2:80"} {
		s.NodeB.Inject(s.NodeA, Segment{
			Protocol: UDP, Payload: []byte("x"),
			Src: netip.MustParseAddrPort("192.168.0.9:4711"), Dst: netip.MustParseAddrPort(dst),
		}.Packet())
	}
	if !eventually(func() bool { return server.Count() == 2 }) {
		t.Errorf("%d of 2 datagrams from unused addresses arrived", server.Count())
	}
}

func TestInjectedSYNIsAnswered(t *testing.T) {
	s := newTestLab(t, Options{})
	s.NodeA.Serve(TCP, 80)
	each(t, []Protocol{TCP}, func(t *testing.T, _ Protocol, fam func(string) netip.Addr) {
		tap := s.near.For(t).Tap()
		syn := Segment{
			Protocol: TCP, Seq: 7, Flags: SYN,
			Src: netip.AddrPortFrom(s.near.Addr(fam("10.0.0.0")), 4711),
			Dst: netip.AddrPortFrom(fam("192.168.0.2"), 80),
		}
		s.near.Inject(s.NodeA, syn.Packet())
		acked := func(x Packet) bool {
			header := ip4Header
			if x.Dst.Addr().Is6() {
				header = ip6Header
			}
			return x.Src == syn.Dst && binary.BigEndian.Uint32(x.Data[header+8:]) == 8 && x.Data[header+13] == SYN|ACK
		}
		if !eventually(func() bool { return tap.Count(acked) > 0 }) {
			t.Errorf("no SYN ACK: %s", tap.Packets())
		}
	})
}

func TestInternetChecksum(t *testing.T) {
	for in, want := range map[string]uint16{
		"": 0xffff, "\x00\x01\xf2\x03\xf4\xf5\xf6\xf7": ^uint16(0xddf2), "\x01": 0xfeff, // the second is RFC 1071's
	} {
		if got := internetChecksum([]byte(in)); got != want {
			t.Errorf("checksum of %x: %04x, want %04x", in, got, want)
		}
	}
}

func eventually(done func() bool) bool {
	for range 400 {
		if done() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}
