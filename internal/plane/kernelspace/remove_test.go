package kernelspace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// dangling is a subject whose network was deleted and has left load balancers, beside one of another network.
func dangling(t *testing.T) *subject {
	t.Helper()
	s := newSubject(hns.L2Bridge, func(f *hnstest.Fake) { f.KeepDangling = true })
	write(t, New(s.fake, Options{Network: networkName}), onNode(at("10.180.1.7", "b")))
	if err := s.addForeign(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.fake.DeleteNetwork(networkName)
	return s
}

// Without the network, load balancers that refer to nothing are deleted, even if the network has no name.
// Load balancers of other networks stay, and a line says so.
func TestRemoveWithoutTheNetwork(t *testing.T) {
	for name, line := range map[string]string{
		networkName: `HNS still has 1 load balancer, and no network "cbr0" (--network-name): ` +
			"they refer to endpoints of other networks",
		"": "HNS still has 1 load balancer: to remove those of an HNS network, name it by --network-name, " +
			"winkernel.networkName or the environment variable KUBE_NETWORK",
	} {
		s := dangling(t)
		k := Kind(s.fake, thisHost{})
		setup, _ := setup(config.HNS{Network: name})
		removed, err := k.Remove(t.Context(), setup)
		if err != nil || !slices.Equal(removed, []string{"4 load balancers"}) {
			t.Errorf("%q: removed %q, %v", name, removed, err)
		}
		list, err := s.fake.LoadBalancers(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != s.foreign[0] {
			t.Errorf("%q: left %+v, %v", name, list, err)
		}
		lines, err := k.Cleanup(t.Context(), setup)
		if err != nil || !slices.Equal(lines, []string{line}) {
			t.Errorf("%q, %v, want %q", lines, err, line)
		}
	}
}

// A clean-up that knows the network, or has nothing to do, prints no line. Without HNS there is nothing to remove
// unless a network is named.
func TestNothingRemains(t *testing.T) {
	s, _ := written(t)
	named, _ := setup(config.HNS{Network: networkName})
	unnamed, _ := setup(config.HNS{})
	k := Kind(s.fake, thisHost{})
	if lines, err := k.Cleanup(t.Context(), named); err != nil || len(lines) > 0 {
		t.Errorf("%q, %v", lines, err)
	}
	empty := Kind(hnstest.New(hns.Network{Name: networkName, Type: hns.L2Bridge}), thisHost{})
	if lines, err := empty.Cleanup(t.Context(), unnamed); err != nil || len(lines) > 0 {
		t.Errorf("%q, %v", lines, err)
	}
	none := Kind(noService{s.fake}, thisHost{})
	if removed, err := none.Remove(t.Context(), unnamed); err != nil || len(removed) > 0 {
		t.Errorf("%q, %v", removed, err)
	}
	if removed, err := none.Remove(t.Context(), named); !errors.Is(err, hns.ErrNoService) || len(removed) > 0 {
		t.Errorf("%q, %v", removed, err)
	}
}

// Objects that HNS does not delete are an error, and not counted. The others are deleted.
func TestRemoveFails(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	write(t, New(s.fake, Options{Network: networkName}), onNode(at("10.180.1.7", "b")))
	s.refuse("delete 172.30.0.1 ")
	removed, err := New(s.fake, Options{Network: networkName}).Remove(t.Context())
	if !errors.Is(err, errOdd) || strings.Contains(err.Error(), "retries") ||
		!slices.Equal(removed, []string{"3 load balancers"}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	s.fake.Refuse = nil
	removed, err = New(s.fake, Options{Network: networkName}).Remove(t.Context())
	if err != nil || !slices.Equal(removed, []string{"1 load balancer", "1 endpoint"}) {
		t.Errorf("removed %q, %v", removed, err)
	}
}

// noService is a host whose HNS is not installed.
type noService struct{ HNS }

func (noService) Features(context.Context) (hns.Features, error) {
	return hns.Features{}, hns.ErrNoService
}
