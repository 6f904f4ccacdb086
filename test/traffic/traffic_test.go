//go:build linux

package traffic

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

func TestMain(m *testing.M) { lab.Main(m) }

// Each connection is counted once, for its port and the backend that answered: whoever connects to which address, also
// after endpoints have changed. After a restart the counts begin at 0.
func TestConnectionsAreCountedByBackend(t *testing.T) {
	for name, kind := range map[string]plane.Kind{
		"nftables": nftables.Kind(), "iptables-nft": iptables.Kind(), "iptables-legacy": iptables.Kind(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if kind.Mode == "iptables" {
				if err := lab.HintIptables(s.NodeA, name[len("iptables-"):]); err != nil {
					t.Fatal(err)
				}
			}
			stop := s.open(kind)
			s.endpoints("web", s.pods[:2]...)
			s.endpoints("sticky", s.pods[:2]...)
			s.endpoints("node", s.NodeA)
			s.sync()
			s.first()
			s.everyConnection()
			s.compare("at first")
			s.endpoints("web", s.pods[1:]...)
			s.endpoints("sticky", s.pods[2:]...)
			s.sync()
			s.everyConnection()
			s.compare("after a change of endpoints")
			if kind.Mode == "nftables" { // iptables deletes counters with their chains
				s.everyConnection()
				s.endpoints("web", s.pods[2:]...)
				s.endpoints("sticky", s.pods[:2]...)
				s.sync()
				s.compare("with a change before they are read")
			}
			stop()
			s.everyConnection() // rules stay
			clear(s.want)
			stop = s.open(kind)
			s.sync()
			s.first()
			s.compare("after a restart")
			s.everyConnection()
			s.everyConnection()
			s.compare("later")
			stop()
		})
	}
}

// Connections are served, although the sets of counts are full.
func TestFullSetsOfCounts(t *testing.T) {
	s := newSite(t)
	defer s.open(nftables.Kind())()
	for _, name := range []string{"web", "sticky"} {
		s.endpoints(name, s.pods[:2]...)
	}
	s.endpoints("node", s.NodeA)
	s.sync()
	for _, set := range []string{"counts", "odd-counts"} {
		var fill strings.Builder
		for i := range 1 << 16 {
			fmt.Fprintf(&fill, "add element ip sluice %s { 198.51.%d.%d . tcp . 1 . 0:1 }\n", set, i>>8, i&0xff)
		}
		s.NodeA.Nft(fill.String())
	}
	s.everyConnection()
	s.first()
	counted := s.traffic()
	for id, backends := range s.want {
		opened := uint64(0)
		for _, n := range backends {
			opened += n
		}
		n := counted[id].Traffic[plane.Connections]
		if all := id.Family == route.IPv6; n == 0 || n > opened || all != (n == opened) {
			t.Errorf("%v: %d of %d connections are counted, want all: %v", id, n, opened, all)
		}
	}
}

// everyConnection connects from everywhere to every address of the Services.
func (s *site) everyConnection() {
	s.Helper()
	clients := []*lab.Host{s.client, s.NodeA, s.Outside, s.NodeB, s.pods[0], s.pods[2]} // the last are backends as well
	for _, svc := range s.services {
		for i, p := range svc.Ports {
			for _, vip := range svc.ClusterIPs {
				node := s.NodeA.Addr(vip)
				for _, client := range clients {
					if client != s.Outside && client != s.NodeB {
						s.dial(client, svc, i, netip.AddrPortFrom(vip, p.Port))
					}
					s.dial(client, svc, i, netip.AddrPortFrom(node, p.NodePort))
				}
			}
			other := netip.MustParseAddr("192.168.1.2") // another address of the node
			s.dial(s.Outside, svc, i, netip.AddrPortFrom(other, p.NodePort))
		}
	}
}

// dial connects some times, and records which backends answered.
func (s *site) dial(from *lab.Host, svc *cluster.Service, port int, to netip.AddrPort) {
	s.Helper()
	p := svc.Ports[port]
	id := route.PortID{Service: svc.Name, Name: p.Name, Protocol: p.Protocol, Family: route.FamilyOf(to.Addr())}
	for _, r := range from.Repeat(3, lab.Probe{Protocol: p.Protocol, To: to}) {
		if r.Outcome != lab.Answered {
			s.Fatalf("%s to %s %s: %s", from.Name(), to, p.Protocol, r)
		}
		if s.want[id] == nil {
			s.want[id] = map[netip.AddrPort]uint64{}
		}
		s.want[id][r.Backend]++
	}
}

// first waits until the plane has read once.
func (s *site) first() {
	s.Helper()
	s.await(func() string {
		if s.traffic() == nil {
			return "nothing was read"
		}
		return ""
	})
}

// compare waits until the plane has counted what clients have seen, and verifies that it never counts more. Backends
// that are gone may be missing.
func (s *site) compare(when string) {
	s.Helper()
	s.await(func() string {
		got := s.traffic()
		for id, backends := range s.want {
			sum := uint64(0)
			for b, n := range backends {
				sum += n
				of := got[id].Backends[b].Connections
				if of != n && (slices.Contains(s.serving[id.Service], b.Addr()) || of != 0) {
					return fmt.Sprintf("%s: %v to %s: counted %d, want %d", when, id, b, of, n)
				}
			}
			if of := got[id].Traffic[plane.Connections]; of != sum {
				return fmt.Sprintf("%s: %v: counted %d, want %d", when, id, of, sum)
			}
		}
		for id, of := range got {
			if n := of.Traffic[plane.Connections]; n > 0 && s.want[id] == nil {
				return fmt.Sprintf("%s: %v: counted %d, want none", when, id, n)
			}
		}
		return ""
	})
	s.Logf("%s: %d ports, %d connections", when, len(s.want), total(s.want))
}

func total(all map[route.PortID]map[netip.AddrPort]uint64) (n uint64) {
	for _, backends := range all {
		for c := range maps.Values(backends) {
			n += c
		}
	}
	return n
}

// await waits until check returns nothing.
func (s *site) await(check func() string) {
	s.Helper()
	deadline := time.Now().Add(machine.Scale(20 * time.Second))
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal(problem)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *site) traffic() plane.Counted {
	s.Helper()
	counted, err := s.opened.Traffic(context.Background(), s.compiler.Snapshot())
	if err != nil {
		s.Fatal(err)
	}
	return counted
}
