//go:build linux

package lab

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// steadyWay is from node A to a pod that answers.
func steadyWay(t *testing.T) (*Lab, Way) {
	l := New(t, Options{})
	l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1").Serve(TCP, 80)
	return l, Way{From: l.NodeA, To: netip.MustParseAddrPort("10.180.0.1:80")}
}

func TestSteadyTrafficDetectsOneLostPacket(t *testing.T) {
	l, way := steadyWay(t)
	s := StartSteady(t, time.Millisecond, way)
	l.NodeA.Nft(`table inet lossy { chain output { type filter hook output priority 0
		tcp dport 80 tcp flags & (syn | ack) == syn limit rate 1/hour burst 1 packets counter drop
	}; }`)
	s.Await(math.MaxInt32)
	if err := s.End(); err == nil || !strings.Contains(err.Error(), "its first packet was retransmitted") {
		t.Errorf("got %v", err)
	}
}

func TestSteadyTrafficDetectsAWrongAnswer(t *testing.T) {
	_, way := steadyWay(t)
	wrong := errors.New("wrong backend")
	way.Check = func(Result) error { return wrong }
	for _, start := range []func(T, time.Duration, ...Way) *Steady{StartSteady, StartConnecting} {
		s := start(t, time.Millisecond, way)
		s.Await(math.MaxInt32)
		if err := s.End(); !errors.Is(err, wrong) {
			t.Errorf("got %v", err)
		}
	}
}
