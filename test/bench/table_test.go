//go:build linux

package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestTable(t *testing.T) {
	of := func(p50 time.Duration, rss uint64) result {
		return result{Replace: changeStats{P50: p50}, PeakRSS: rss}
	}
	var b strings.Builder
	err := printSizes(&b, []int{1000, 2000}, [][]result{
		{of(40*time.Microsecond, 1<<20), of(90*time.Microsecond, 9<<20), of(10*time.Microsecond, 1<<20)},
		{of(60*time.Microsecond, 3<<20)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| Services of 3 endpoints | 1000 | 2000 | highest / lowest |",
		"| endpoint replaced, p50, µs | 40 | 60 | 1.50 |",
		"| peak RSS, MB | 1.0 | 3.0 |  |",
		"| peak RSS, bytes per further Service |  | 2097 | |",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, b.String())
		}
	}
}

func TestMedian(t *testing.T) {
	same := func(n int) int { return n }
	for want, list := range map[int][]int{1: {1}, 2: {3, 1, 2}, 4: {9, 4, 5, 1}} {
		if got := median(list, same); got != want {
			t.Errorf("the median of %v is %d, want %d", list, got, want)
		}
	}
}

// TestData verifies that addresses are unique and that Services are valid.
func TestData(t *testing.T) {
	m := newGenerator()
	seen := map[netip.Addr]bool{}
	take := func(a netip.Addr) {
		if seen[a] {
			t.Fatalf("duplicate address %s", a)
		}
		seen[a] = true
	}
	for _, i := range []int{0, 1, 31, 32, 255, 256, 65_535, 65_536, 100_999} {
		take(clusterIP(i))
		for j := range 6 {
			take(podIP(i, j))
		}
		svc, sl := m.service(i), m.slice(i, 0, 1, 2)
		if svc.Ignored != "" || len(svc.ClusterIPs) != 1 || sl.Service != svc.Name || len(sl.Endpoints) != endpoints {
			t.Errorf("Service %d is %+v with %+v", i, svc, sl)
		}
	}
	store := cluster.NewStore()
	m.fill(store, 50)
	if got := len(store.ServiceNames()); got != 50 {
		t.Errorf("the store has %d Services, want 50", got)
	}
}
