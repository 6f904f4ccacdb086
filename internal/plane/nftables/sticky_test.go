package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func backendsOf(last ...int) []netip.AddrPort {
	var list []netip.AddrPort
	for _, b := range last {
		if b == 0 {
			list = append(list, netip.AddrPort{})
			continue
		}
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(b >> 8), byte(b)}), 80))
	}
	return list
}

func TestRenumber(t *testing.T) {
	for _, tt := range []struct {
		name               string
		before, want, then []int
	}{
		{"the first", nil, []int{1, 2, 3}, []int{1, 2, 3}},
		{"one is deleted", []int{1, 2, 3}, []int{1, 3}, []int{1, 0, 3}},
		{"the last is deleted", []int{1, 2, 3}, []int{1, 2}, []int{1, 2}},
		{"a new one fills a gap", []int{1, 0, 3}, []int{1, 3, 4}, []int{1, 4, 3}},
		{"a new one is appended", []int{1, 2, 3}, []int{1, 2, 3, 4}, []int{1, 2, 3, 4}},
		{
			"the remaining one keeps its number, and gets one that clients draw", []int{1, 2, 3, 4}, []int{4}, []int{4, 0, 0, 4},
		},
		{"others are added again", []int{4, 0, 0, 4}, []int{4, 5, 6}, []int{4, 5, 6, 4}},
		{"all numbers are needed", []int{4, 4, 4, 4}, []int{4, 5, 6}, []int{4, 4, 5, 6}},
	} {
		got := renumber(backendsOf(tt.before...), backendsOf(tt.want...))
		if fmt.Sprint(got) != fmt.Sprint(backendsOf(tt.then...)) {
			t.Errorf("%s: %v to %v is %v, want %v", tt.name, tt.before, tt.want, got, backendsOf(tt.then...))
		}
	}
}

// After random changes, each backend has a number that clients draw. A backend that stays
// keeps at least one of its numbers, and all of them if there are enough for the others.
func TestRenumberAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var slots []netip.AddrPort
	for range 2000 {
		var list []int
		for b := 1; b <= 40; b++ {
			if r.IntN(40) < 1+r.IntN(40) {
				list = append(list, b)
			}
		}
		want := backendsOf(list...)
		next := renumber(slots, want)
		low, all := map[netip.AddrPort]int{}, map[netip.AddrPort]bool{}
		for i, b := range next {
			if !b.IsValid() {
				continue
			}
			all[b] = true
			if i < drawn(len(want)) {
				low[b]++
			}
		}
		if len(low) != len(want) || len(all) != len(want) {
			t.Fatalf("%v to %v is %v: %d of %d backends are drawn", slots, want, next, len(low), len(want))
		}
		for i, b := range slots {
			if b.IsValid() && all[b] && (i >= len(next) || next[i] != b) && len(want) < drawn(len(want))/2 {
				t.Fatalf("%v to %v is %v: %s loses number %d", slots, want, next, b, i+1)
			}
		}
		slots = next
	}
}

// An action contains everything that its chain depends on.
func TestStickyActions(t *testing.T) {
	for s := range spaces {
		for kind := uint16(kindPlain); kind <= kindOutside; kind++ {
			for _, timeout := range []time.Duration{time.Second, 3 * time.Hour, 24 * time.Hour} {
				for n, among := range map[int]int{1: 2, 2: 4, 3: 4, 4: 8, 6: 8, 7: 16, 1 << 14: 1 << 15} {
					for _, pool := range []route.Pool{route.Cluster, route.Local} {
						w := s.stickyAction(kind, timeout, pool, n)
						if !w.sticky() || w.kind() != kind || w.timeout() != timeout || w.pool() != pool || w.drawn() != among ||
							w.space() != s {
							t.Errorf("%x: %d %s %d %d", w, w.kind(), w.timeout(), w.pool(), w.drawn())
						}
					}
				}
			}
		}
	}
	for _, w := range []action{byAddress.action(kindPlain, 0xffff), byNodePort.action(kindSplit, 0) | guardBit} {
		if w.sticky() {
			t.Errorf("%x remembers clients", w)
		}
	}
}

// A new Service does not get the id of a deleted one, whose clients are still in the map. A
// restarted proxy adopts the ids in the kernel.
func TestIDsAreNotUsedAgain(t *testing.T) {
	fake := nft.NewFake()
	s := newTestCluster(t, fake)
	add := func(s *testCluster) action {
		t.Helper()
		s.service("cart", func(svc *cluster.Service) { svc.Affinity = 3 * time.Hour })
		s.endpoints("cart", planetest.Endpoint("10.180.0.2", "a"))
		s.sync()
		for _, e := range fake.Tables[bothTables[0]].Sets["affinity"].Elements.All() {
			return actionIn(e.Data)
		}
		t.Fatal("no id")
		return 0
	}
	first := add(s)
	restarted := newTestCluster(t, fake)
	if again := add(restarted); again != first {
		t.Errorf("a restart changes id %d to %d", first, again)
	}
	restarted.store.DeleteService(cluster.Name{Namespace: "shop", Name: "cart"})
	restarted.sync()
	if second := add(restarted); second == first {
		t.Errorf("a new Service has id %d of the deleted one", second)
	}
}

// No two of many ports have the same id.
func TestIDs(t *testing.T) {
	ports := map[uint32]route.PortID{}
	for i := range 1000 {
		port := numberedService(i).Ports[0].ID(numberedService(i).Name)
		id := idOf(port, uint32(i))
		if other, known := ports[id]; known {
			t.Errorf("%s has id %x, as %s", port, id, other)
		}
		ports[id] = port
	}
}
