package kernelspace

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// Explanations know the network of the last read, not only that of the start.
func TestFactsFollowTheNetwork(t *testing.T) {
	fake := hnstest.New(hns.Network{Name: networkName, Type: hns.L2Bridge})
	s, _ := setup(config.HNS{Network: networkName, SourceVIP: planetest.Addrs("10.180.99.1")[0]})
	opened, err := Kind(fake, thisHost{}).Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	without := func() (got []string) {
		for _, p := range []route.Port{
			{Protocol: cluster.TCP, Family: route.IPv4},
			{Protocol: cluster.SCTP, Family: route.IPv4},
			{Protocol: cluster.UDP, Family: route.IPv6},
		} {
			got = append(got, opened.Facts.Without(&p).Why)
		}
		return got
	}
	const noSCTP = "HNS does not balance SCTP"
	if diff := cmp.Diff([]string{"", noSCTP, ""}, without()); diff != "" {
		t.Error(diff)
	}
	fake.DeleteNetwork(networkName)
	fake.AddNetwork(hns.Network{Name: networkName, Type: hns.Overlay})
	if err := opened.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"", noSCTP, "overlay networks of HNS have no dual stack: IPv6 is not served"}
	if diff := cmp.Diff(want, without()); diff != "" {
		t.Error(diff)
	}
}

// The source is translated where the load balancer has no direct server return.
func TestFactsOfTheSource(t *testing.T) {
	svc := &route.Service{
		Ports: []route.Port{
			{Family: route.IPv4, Frontends: []route.Frontend{{Kind: route.ClusterIP}, {Kind: route.ExternalIP}}},
		},
	}
	for name, tc := range map[string]struct {
		has  hns.Features
		dsr  bool
		want [3]bool // at a clusterIP, at an externalIP, and there with the policy Local
	}{
		"a recent HNS": {recent(), false, [3]bool{true, true, false}},
		"with DSR":     {recent(), true, [3]bool{false, true, false}},
		"an old HNS":   {hns.Features{V2: true}, false, [3]bool{true, true, true}},
	} {
		p := New(nil, Options{DSR: tc.dsr})
		p.seen.Store(&state{features: tc.has})
		var got [3]bool
		for i, by := range []plane.Connection{
			{Service: svc}, {Service: svc, Frontend: 1}, {Service: svc, Frontend: 1, Way: route.Action{Pool: route.Local}},
		} {
			got[i], _ = p.facts().SourceNAT(by)
		}
		if got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
