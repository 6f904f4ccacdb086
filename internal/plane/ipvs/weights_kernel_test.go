package ipvs

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Connections are shared by weight. An endpoint whose weight becomes 0 keeps its connections,
// and gets new ones when it has a weight again.
func TestConnectionsFollowWeightsOnTheKernel(t *testing.T) {
	const light, heavy = "127.0.0.1:8080", "127.0.0.1:8081"
	kernel, netns := realKernel(t)
	_, plain := oneService(light, heavy)
	prepared(t, netns)
	p := New(kernel, Options{Families: route.Families()[:1], Mark: 0x4000})
	svc := weighted(plain, map[string]uint16{heavy: 3})
	written(t, p, route.Change{Table: &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}})
	listen(t, netns, light)
	listen(t, netns, heavy)

	kept := dial(t, netns)
	for first := ask(t, kept); first != heavy; first = ask(t, kept) {
		kept = dial(t, netns)
	}
	expect := func(weights map[string]uint16, lightShare int) {
		t.Helper()
		now := weighted(plain, weights)
		update(t, p, svc, now)
		svc = now
		got := map[string]int{}
		for range 16 {
			got[ask(t, dial(t, netns))]++
		}
		if got[light] != lightShare || got[light]+got[heavy] != 16 {
			t.Errorf("weights %v: connections %v, want %d to %s", weights, got, lightShare, light)
		}
		if at := ask(t, kept); at != heavy {
			t.Errorf("weights %v: an old connection reaches %s", weights, at)
		}
	}
	expect(map[string]uint16{heavy: 3}, 4)
	expect(map[string]uint16{heavy: 0}, 16)
	expect(map[string]uint16{heavy: 15}, 1)
}
