package rtnl

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A neighbour answers if a probe or its repetition comes back as it was.
func TestProbe(t *testing.T) {
	here, there := kerneltest.Namespace(t), kerneltest.Namespace(t)
	shell(t, here, "ip link add eth0 type veth peer name eth1")
	kerneltest.Do(t, here, func() error { return move("eth1", there) })
	shell(t, here, "ip addr add 10.0.0.1/24 dev eth0", "ip -6 addr add fd00::1/64 dev eth0 nodad", "ip link set eth0 up")
	shell(t, there, "ip link set eth1 up")
	same := func(_ int, packet []byte) []byte { return packet }
	answer := map[netip.Addr]func(n int, packet []byte) []byte{ // to the packet after n others
		netip.MustParseAddr("10.0.0.2"): same,
		netip.MustParseAddr("fd00::2"):  same,
		netip.MustParseAddr("10.0.0.3"): func(_ int, packet []byte) []byte { return append(packet[1:], 0) },
		netip.MustParseAddr("10.0.0.4"): func(n int, packet []byte) []byte { return packet[:n*len(packet)] },
		netip.MustParseAddr("10.0.0.5"): func(_ int, packet []byte) []byte { return packet[:0] },
	}
	for a, reply := range answer {
		shell(t, there, "ip addr add "+netip.PrefixFrom(a, a.BitLen()-8).String()+" dev eth1 nodad")
		kerneltest.Do(t, there, func() error {
			s, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, ProbePort)))
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = s.Close() })
			go func() {
				b := make([]byte, 100)
				for i := 0; ; i++ {
					n, from, err := s.ReadFromUDPAddrPort(b)
					if err != nil {
						return // the test is over
					}
					_, _ = s.WriteToUDPAddrPort(reply(min(i, 1), b[:n]), from)
				}
			}()
			return nil
		})
	}
	for self, c := range map[string]struct {
		to   []netip.Addr
		want []bool
	}{
		"10.0.0.1": {
			parse("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"), []bool{true, false, true, false, false},
		},
		"fd00::1": {parse("fd00::6", "fd00::2"), []bool{false, true}},
	} {
		got, err := New(here).Probe(netip.MustParseAddr(self), c.to)
		for range 20 { // on a busy machine an answer may come too late
			if err != nil || slices.Equal(c.want, got) {
				break
			}
			got, err = New(here).Probe(netip.MustParseAddr(self), c.to)
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("answers of %v, error %v (-want +got):\n%s", c.to, err, diff)
		}
	}
}
