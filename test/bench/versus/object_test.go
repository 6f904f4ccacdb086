//go:build linux

package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/test/bench/filled"
)

// TestAddresses verifies that all addresses are unique.
func TestAddresses(t *testing.T) {
	seen := map[netip.Addr]string{netip.MustParseAddr(clientAddr): "the client"}
	take := func(a netip.Addr, who string) {
		if seen[a] != "" {
			t.Fatalf("%s is that of %s and of %s", a, seen[a], who)
		}
		seen[a] = who
	}
	services := netip.MustParsePrefix(filled.ServiceCIDR)
	for _, i := range []int{0, 1, 31, 32, 255, 256, 65_535, 65_536, filled.Largest - 1, rollingService} {
		take(filled.ClusterIP(i), filled.ServiceName(i))
		if !services.Contains(filled.ClusterIP(i)) {
			t.Errorf("%s is not in %s", filled.ClusterIP(i), services)
		}
		for j := range 6 {
			take(filled.PodIP(i, j), "a pod of "+filled.ServiceName(i))
		}
	}
	for _, j := range []int{0, 255, 256, 4999} {
		take(rollingIP(0, j), "an old pod")
		take(rollingIP(1, j), "a new pod")
	}
	for _, a := range podAddrs() {
		take(a, "a real pod")
	}
}

func TestProbedServicesAreSpreadOverAll(t *testing.T) {
	got := spreadOver(1000)
	if len(got) != probes || got[0] != 0 || got[probes-1] != 999 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != probes {
		t.Errorf("got %v", got)
	}
}

// TestBatches follows a rolling update: every write replaces a batch of one
// slice, and at the end all endpoints are new.
func TestBatches(t *testing.T) {
	fresh := func(list []netip.Addr) (n int) {
		for _, a := range list {
			if a.As4()[1] == 182 {
				n++
			}
		}
		return n
	}
	list := batches(300)
	if len(list) != 300/perBatch {
		t.Fatalf("%d writes, want %d", len(list), 300/perBatch)
	}
	for i, b := range list {
		slice, part := i/(perSlice/perBatch), i%(perSlice/perBatch)+1
		if b.slice != slice || len(b.addrs) != perSlice || fresh(b.addrs) != part*perBatch {
			t.Errorf("write %d is of slice %d with %d endpoints, %d of them new", i, b.slice, len(b.addrs), fresh(b.addrs))
		}
	}
}
