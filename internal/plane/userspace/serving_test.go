package userspace

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A terminating endpoint that still serves keeps its UDP flows, and gets no new ones.
func TestServingBackendsKeepTheirFlows(t *testing.T) {
	ready, terminating := netip.MustParseAddrPort("10.180.0.1:53"), netip.MustParseAddrPort("10.180.0.2:53")
	p := New(noListener, Options{})
	got := p.targetOf(&route.Port{
		Protocol: cluster.UDP, Cluster: []netip.AddrPort{ready}, Serving: []netip.AddrPort{ready, terminating},
	})
	want := [][]relay.Backend{{{Addr: ready, Weight: 1}, {Addr: terminating}}, nil}
	if !reflect.DeepEqual(got.Pools, want) {
		t.Errorf("pools are %v, want %v", got.Pools, want)
	}
}
