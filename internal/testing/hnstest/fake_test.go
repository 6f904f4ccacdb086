package hnstest

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// As HNS does, the fake spells the IDs of endpoints in upper case in the documents of load balancers, and in lower
// case in their own documents.
func TestSpellingOfIDs(t *testing.T) {
	ctx := t.Context()
	f := New(hns.Network{Name: "n", Type: hns.L2Bridge})
	n, err := f.Network(ctx, "n")
	if err != nil {
		t.Fatal(err)
	}
	id, err := f.CreateEndpoint(ctx, hns.Endpoint{
		Network: strings.ToUpper(n.ID), Addrs: []netip.Addr{netip.MustParseAddr("10.180.1.7")},
	})
	if err != nil {
		t.Fatal(err)
	}
	balancer, err := f.CreateLoadBalancer(ctx,
		hns.LoadBalancer{Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{strings.ToUpper(id)}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.endpointWith(id)
	l, errBalancer := f.balancerWith(balancer)
	if err != nil || errBalancer != nil {
		t.Fatal(err, errBalancer)
	}
	endpointDoc, balancerDoc := e.(endpointDocument), l.(balancerDocument)
	got := []string{endpointDoc.ID, endpointDoc.HostComputeNetwork, balancerDoc.ID, balancerDoc.HostComputeEndpoints[0]}
	want := []string{id, strings.ToUpper(n.ID), strings.ToUpper(balancer), strings.ToUpper(id)}
	if !slices.Equal(got, want) || id == strings.ToUpper(id) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The fake refuses the same requests as HNS.
func TestRefusals(t *testing.T) {
	ctx := t.Context()
	f := New(hns.Network{Name: "n", Type: hns.L2Bridge})
	n, err := f.Network(ctx, "n")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.180.1.7")
	e := hns.Endpoint{Network: n.ID, Addrs: []netip.Addr{addr}, MAC: hns.MAC(addr), Remote: true}
	if e.MAC != "02-11-0A-B4-01-07" {
		t.Error(e.MAC)
	}
	id, err := f.CreateEndpoint(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateEndpoint(ctx, e); err == nil {
		t.Error("two endpoints have the same address")
	}
	l := hns.LoadBalancer{
		VIP: netip.MustParseAddr("172.30.0.1"), Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{id},
	}
	balancer, err := f.CreateLoadBalancer(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateLoadBalancer(ctx, l); !errors.Is(err, hns.ErrPortExists) {
		t.Errorf("the same load balancer again: %v", err)
	}
	if err := f.DeleteEndpoint(ctx, id); !errors.Is(err, ErrInUse) {
		t.Errorf("deletion of an endpoint in use: %v", err)
	}
	l.Port, l.Flags.DSR, f.Version.DSR = 81, true, false
	if _, err := f.CreateLoadBalancer(ctx, l); !errors.Is(err, hns.ErrNotImplemented) {
		t.Errorf("DSR: %v", err)
	}
	f.Version.Modify = false
	if err := f.ModifyLoadBalancer(ctx, hns.LoadBalancer{ID: balancer}); !errors.Is(err, hns.ErrNotImplemented) {
		t.Errorf("modify: %v", err)
	}
	f.DeleteNetwork("n")
	if _, err := f.Network(ctx, "n"); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
	if err := f.DeleteLoadBalancer(ctx, balancer); !errors.Is(err, hns.ErrNotFound) {
		t.Errorf("it is gone with the network: %v", err)
	}
	if err := f.DeleteEndpoint(ctx, id); !errors.Is(err, hns.ErrNotFound) {
		t.Errorf("it is gone with the network: %v", err)
	}
}
