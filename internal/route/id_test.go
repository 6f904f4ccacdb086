package route

import (
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestPortIDsInOrder(t *testing.T) {
	web := cluster.Name{Namespace: "default", Name: "web"}
	ports := []Port{
		{Name: "http", Protocol: cluster.UDP, Family: IPv4},
		{Protocol: cluster.TCP, Family: IPv6},
		{Name: "http", Protocol: cluster.TCP, Family: IPv4},
		{Protocol: cluster.TCP, Family: IPv4},
	}
	ids := []PortID{ports[0].ID(cluster.Name{Namespace: "shop", Name: "web"})}
	for i := range ports {
		ids = append(ids, ports[i].ID(web))
	}
	slices.SortFunc(ids, PortID.Compare)
	var got []string
	for _, id := range ids {
		got = append(got, id.String())
	}
	want := []string{
		"default/web tcp IPv4", "default/web:http tcp IPv4", "default/web:http udp IPv4", "default/web tcp IPv6",
		"shop/web:http udp IPv4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("ports in order: %q, want %q", got, want)
	}
}
