package route

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// The endpoints of TCP are all listed, whatever their condition, and only for planes that ask for it.
func TestPresent(t *testing.T) {
	list := []Choice{}
	for i, e := range []cluster.Endpoint{{Ready: true}, {Terminating: true}, {}} {
		list = append(list, Choice{Endpoint: &e, Backend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
	}
	b := &builder{view: &view{listEndpoints: true}}
	for _, c := range []struct {
		protocol cluster.Protocol
		list     []Choice
		want     int
		none     bool
	}{{cluster.TCP, list, 3, false}, {cluster.TCP, nil, 0, false}, {cluster.UDP, list, 0, true}} {
		p := Port{Protocol: c.protocol}
		b.fill(&p, slices.Clone(c.list))
		if len(p.Present) != c.want || (p.Present == nil) != c.none {
			t.Errorf("%s with %d endpoints: %v, want %d", c.protocol, len(c.list), p.Present, c.want)
		}
	}
	p := Port{Protocol: cluster.TCP}
	if (&builder{view: &view{}}).fill(&p, list); p.Present != nil {
		t.Errorf("nobody has asked for %v", p.Present)
	}
}
