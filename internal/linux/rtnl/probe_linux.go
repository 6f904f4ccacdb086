package rtnl

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// ProbePort is the UDP port of probes, from and to.
const ProbePort = 10265

// ProbeTo returns the destinations that probes have on their way, which no host has: an address for hosts without a
// network (RFC 7335), and the same one in the prefix whose packets routers discard (RFC 6666). The source is the
// address after it, in IPv4 the dummy address (RFC 7600, section 4.8).
func ProbeTo() (v4, v6 netip.Addr) {
	v4 = netip.AddrFrom4([4]byte{192, 0, 0, 7})
	return v4, netip.AddrFrom16([16]byte{1, 0, 12: 192, 0, 0, 7})
}

// token is the payload of a probe. Only who has seen the probe knows it.
type token [16]byte

// Probe sends a UDP packet from an address of this host to each neighbour, all of one family, and reports which
// packets came back. It repeats those that did not, and waits 140 ms for them. It is for hosts with rules that give
// probes other addresses on their way.
func (l *Links) Probe(self netip.Addr, to []netip.Addr) (answered []bool, err error) {
	var s *net.UDPConn
	err = netns.Do(l.netns, func() error {
		s, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(self, ProbePort)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("no probes can be sent: %w", err)
	}
	defer func() { _ = s.Close() }() // all was read
	answered = make([]bool, len(to))
	pending := map[token]int{}
	for i := range to {
		var t token
		_, _ = rand.Read(t[:]) // never fails
		pending[t] = i
	}
	for wait := 20 * time.Millisecond; wait <= 80*time.Millisecond && len(pending) > 0; wait *= 2 {
		for t, i := range pending {
			_, _ = s.WriteToUDPAddrPort(t[:], netip.AddrPortFrom(to[i], ProbePort)) // else there is no answer
		}
		if err := s.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, fmt.Errorf("receive answers to probes: %w", err)
		}
		for len(pending) > 0 {
			var t token
			if _, err := s.Read(t[:]); err != nil {
				break // the time is over
			}
			if i, is := pending[t]; is {
				answered[i] = true
				delete(pending, t)
			}
		}
	}
	return answered, nil
}
