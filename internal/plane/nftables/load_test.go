package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

func TestExcess(t *testing.T) {
	with := func(frontends, backends int, change func(*route.Port)) *route.Service {
		p := route.Port{Name: "http", Frontends: make([]route.Frontend, frontends), Cluster: make([]netip.AddrPort, backends)}
		if change != nil {
			change(&p)
		}
		return &route.Service{Ports: []route.Port{p}}
	}
	for _, tt := range []struct {
		name string
		svc  *route.Service
		size string
	}{
		{"65,535 endpoints", with(1, 65535, nil), ""},
		{"65,536 endpoints", with(1, 65536, nil), "65537 map elements for its addresses, ports, endpoints and source ranges"},
		{
			"1,000 addresses of 65 endpoints", with(1000, 65, nil),
			"66000 map elements for its addresses, ports, endpoints and source ranges",
		},
		{"16,383 endpoints with session affinity", with(1, 16383, func(p *route.Port) { p.Affinity = time.Hour }), ""},
		{
			"16,384 endpoints with session affinity", with(1, 16384, func(p *route.Port) { p.Affinity = time.Hour }),
			"65538 map elements for its addresses, ports, endpoints and source ranges",
		},
		{
			"4,096 source ranges", with(1, 1, func(p *route.Port) { p.Frontends[0].Allow = make([]netip.Prefix, 4096) }),
			"65538 map elements for its addresses, ports, endpoints and source ranges",
		},
	} {
		size, limit := Excess(tt.svc)
		if size != tt.size || (limit == "") != (size == "") {
			t.Errorf("%s: size %q, limit %q; want size %q", tt.name, size, limit, tt.size)
		}
	}
}
