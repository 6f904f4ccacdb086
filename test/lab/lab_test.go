//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// protocols are those of Services.
var protocols = [...]Protocol{TCP, UDP, SCTP}

// testLab is a lab with a pod on each node.
type testLab struct {
	*Lab
	near, far *Host
}

func newTestLab(t *testing.T, o Options) testLab {
	t.Helper()
	start := time.Now()
	l := New(t, o)
	built := time.Since(start)
	start = time.Now()
	s := testLab{
		Lab:  l,
		near: l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1"),
		far:  l.Pod(l.NodeB, "10.180.1.1", "fd00:10:180:1::1"),
	}
	t.Logf("New took %v, two pods %v", built, time.Since(start))
	return s
}

func (s testLab) hosts() []*Host {
	return []*Host{s.near, s.far, s.NodeA, s.NodeB, s.Outside}
}

func TestAllHostsReachEachOther(t *testing.T) {
	s := newTestLab(t, Options{})
	for _, p := range protocols {
		for _, h := range s.hosts() {
			h.Serve(p, 80)
		}
	}
	for _, client := range append(s.hosts(), s.Blocked) {
		for _, server := range s.hosts() {
			for _, to := range server.Addrs() {
				for _, p := range protocols {
					name := fmt.Sprintf("%s %s to %s %s", p, client.Name(), server.Name(), to)
					t.Run(name, func(t *testing.T) { checkReaches(t, client, p, netip.AddrPortFrom(to, 80)) })
				}
			}
		}
	}
}

func checkReaches(t *testing.T, client *Host, p Protocol, to netip.AddrPort) {
	t.Helper()
	r := client.Dial(p, to)
	if r.Outcome != Answered || r.Backend != to {
		t.Fatalf("%s to %s: %s", p, to, r)
	}
	if r.Source != r.Local {
		t.Errorf("%s saw %s, client is %s", to, r.Source, r.Local)
	}
	t.Log(r, r.Took)
}

// Every client of a machine gets another port, outside the range of NodePorts.
func TestFreshPorts(t *testing.T) {
	m := &machine{}
	had := map[uint16]bool{}
	for range 40000 {
		p := m.freshPort()
		if had[p] || p < firstClientPort || p >= endOfClientPorts || p >= firstNodePort && p < endOfNodePorts {
			t.Fatalf("client %d got port %d", len(had)+1, p)
		}
		had[p] = true
	}
}
