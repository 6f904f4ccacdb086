package hnstest

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// HNS is the interface that the Contract tests: of a Fake, or of the hns.Service of Windows.
type HNS interface {
	Features(ctx context.Context) (hns.Features, error)
	Network(ctx context.Context, name string) (hns.Network, error)
	endpoints
	balancers
}

type endpoints interface {
	Endpoints(ctx context.Context) ([]hns.Endpoint, error)
	CreateEndpoint(ctx context.Context, e hns.Endpoint) (string, error)
	DeleteEndpoint(ctx context.Context, id string) error
}

type balancers interface {
	LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (string, error)
	ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) error
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// ContractNetwork is the only network of an HNS for the Contract, which has nothing else.
func ContractNetwork() hns.Network {
	return hns.Network{Name: "pods", Type: hns.Overlay, Remote: []hns.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.180.1.0/24"), Provider: netip.MustParseAddr("192.168.0.3")},
	}}
}

// Contract verifies the promises of package hns. It leaves nothing behind.
func Contract(t *testing.T, h HNS) {
	ctx := t.Context()
	has, err := h.Features(ctx)
	all := hns.Features{V2: true, RemoteSubnet: true, DSR: true, SessionAffinity: true, DualStack: true, Modify: true}
	if err != nil || has != all {
		t.Errorf("features %+v, %v", has, err)
	}
	if _, err := h.Network(ctx, "missing"); !errors.Is(err, hns.ErrNotFound) || !errors.Is(err, hns.ErrNoNetwork) {
		t.Errorf("a missing network: %v", err)
	}
	nowhere := hns.Endpoint{
		Network: "00000000-0000-0000-0000-0000000000ff", Addrs: []netip.Addr{netip.MustParseAddr("10.180.1.9")},
	}
	if _, err := h.CreateEndpoint(ctx, nowhere); !errors.Is(err, hns.ErrNoNetwork) {
		t.Errorf("an endpoint in a missing network: %v", err)
	}
	n, err := h.Network(ctx, "pods")
	want := ContractNetwork()
	if want.ID = n.ID; err != nil || n.ID == "" || !reflect.DeepEqual(n, want) {
		t.Fatalf("network %+v, %v, want %+v", n, err, want)
	}
	ids := contractEndpoints(t, h, n.ID)
	for _, id := range append(slices.Clone(ids), n.ID) {
		if id != hns.ID(id) || id == strings.ToUpper(id) {
			t.Errorf("the ID %s is not in lower case, or has no letters", id)
		}
	}
	contractBalancers(t, h, ids)
	for _, id := range ids {
		if err := h.DeleteEndpoint(ctx, id); err != nil {
			t.Error(err)
		}
		if err := h.DeleteEndpoint(ctx, id); !errors.Is(err, hns.ErrNotFound) {
			t.Errorf("it is deleted again: %v", err)
		}
	}
	if list, err := h.Endpoints(ctx); err != nil || len(list) > 0 {
		t.Errorf("endpoints at the end: %+v, %v", list, err)
	}
}

// contractEndpoints creates endpoints and returns their IDs.
func contractEndpoints(t *testing.T, h HNS, network string) (ids []string) {
	t.Helper()
	ctx := t.Context()
	var want []hns.Endpoint
	for _, e := range []hns.Endpoint{
		{Name: "source-vip", Addrs: []netip.Addr{netip.MustParseAddr("10.180.0.2")}},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.180.1.7")}, Provider: netip.MustParseAddr("192.168.0.3"), Remote: true},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.180.1.8"), netip.MustParseAddr("fd00:10:180:1::8")}, Remote: true},
	} {
		e.Network, e.MAC = network, hns.MAC(e.Addrs[0])
		id, err := h.CreateEndpoint(ctx, e)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		e.ID = id
		ids, want = append(ids, id), append(want, e)
	}
	got, err := h.Endpoints(ctx)
	slices.SortFunc(got, func(a, b hns.Endpoint) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("endpoints\n%+v, %v, want\n%+v", got, err, want)
	}
	if _, err := h.CreateEndpoint(ctx, want[1]); err == nil {
		t.Error("two endpoints have the same address")
	}
	return ids
}

// contractBalancers creates, changes and deletes load balancers.
func contractBalancers(t *testing.T, h HNS, ids []string) {
	t.Helper()
	ctx := t.Context()
	all := hns.Flags{DSR: true, External: true, LocalRouted: true, UseMux: true, PreserveDIP: true, Affinity: true}
	for _, l := range []hns.LoadBalancer{
		{VIP: netip.MustParseAddr("172.30.0.41"), Protocol: 6, Port: 80, Target: 8080, Endpoints: ids[:1]},
		{
			VIP: netip.MustParseAddr("172.30.0.41"), Protocol: 17, Port: 53, Target: 53, Endpoints: ids[1:],
			SourceVIP: netip.MustParseAddr("10.180.0.2"), Flags: all,
		},
		{
			VIP: netip.MustParseAddr("fd00:172:30::41"), Protocol: 6, Port: 80, Target: 8080, Endpoints: ids[2:],
			Flags: hns.Flags{IPv6: true},
		},
		{Protocol: 6, Port: 30080, Target: 8080, Endpoints: ids}, // a NodePort
	} {
		id, err := h.CreateLoadBalancer(ctx, l)
		if err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		l.ID = id
		checkBalancer(t, h, l)
		if id != hns.ID(id) {
			t.Errorf("the ID %s is not in lower case", id)
		}
		if _, err := h.CreateLoadBalancer(ctx, l); !errors.Is(err, hns.ErrPortExists) {
			t.Errorf("%s again: %v", l, err)
		}
		l.Endpoints = ids[1:2]
		if err := h.ModifyLoadBalancer(ctx, l); err != nil {
			t.Errorf("change %s: %v", l, err)
		}
		checkBalancer(t, h, l)
		if err := h.DeleteEndpoint(ctx, ids[1]); err == nil {
			t.Error("an endpoint in use is deleted")
		}
		if err := h.DeleteLoadBalancer(ctx, id); err != nil {
			t.Error(err)
		}
		if err := h.DeleteLoadBalancer(ctx, id); !errors.Is(err, hns.ErrNotFound) {
			t.Errorf("it is deleted again: %v", err)
		}
		if err := h.ModifyLoadBalancer(ctx, l); !errors.Is(err, hns.ErrNotFound) {
			t.Errorf("it is changed after its deletion: %v", err)
		}
	}
	missing := hns.LoadBalancer{
		Protocol: 6, Port: 1, Target: 1, Endpoints: []string{"00000000-0000-0000-0000-0000000000ff"},
	}
	if _, err := h.CreateLoadBalancer(ctx, missing); !errors.Is(err, hns.ErrNotFound) || errors.Is(err, hns.ErrNoNetwork) {
		t.Errorf("a load balancer without its endpoint: %v", err)
	}
}

func checkBalancer(t *testing.T, h HNS, want hns.LoadBalancer) {
	t.Helper()
	list, err := h.LoadBalancers(t.Context())
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("load balancers\n%+v, %v, want\n%+v", list, err, want)
	}
}
