package nftables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The guesses have the key of each element that a new cluster of every shape needs, except
// those of ports that remember their clients, which may have backends of two pools.
func TestGuessesAreComplete(t *testing.T) {
	fake := nft.NewFake()
	opt := route.Options{NodeName: "a", Families: planetest.Families(), Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}}
	change, problems := route.NewCompiler(opt).Compile(planetest.EveryShape().Take())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p := load(t, fake, change)
	for _, table := range bothTables {
		state, err := fake.Read(context.Background(), table, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, guess := range p.layout.guesses() {
			guessed := map[string]bool{}
			for key := range guess.Keys(state) {
				guessed[key] = true
			}
			elements := state.Sets[guess.Set].Elements
			if len(elements) == 0 {
				t.Errorf("%s: the cluster needs no %s", table, guess.Set)
			}
			for key := range elements {
				if !guessed[key] && !remembers(p.layout, state, key) {
					t.Errorf("%s %s: %x is not guessed", table, guess.Set, key)
				}
			}
		}
	}
}

// remembers reports whether a key is that of a backend of a port that remembers its clients.
func remembers(l layout, state *nft.State, key string) bool {
	for i := range l.spaces {
		if _, is := state.Sets[l.spaces[i].affinity.Name].Elements.Get(key[:len(key)-4]); is {
			return true
		}
	}
	return false
}

// A load in parts, and a start over sets that are read by their keys, which both need many
// Services. Edits by another program are found and undone.
func TestManyServices(t *testing.T) {
	const n = 22_000 // three backends each are more than the kernel is asked for in a listing
	table := &route.Table{Services: map[cluster.Name]*route.Service{}}
	for i := range n {
		svc := numberedService(i, 0, 1, 2)
		table.Services[svc.Name] = svc
	}
	conn, netns := realKernel(t)
	p := load(t, conn, route.Change{Table: table}, route.IPv4)
	checkSettled(t, conn, table, route.IPv4)

	svc := numberedService(n/2, 0, 1, 2)
	to, addr := svc.Ports[0].Cluster[1], svc.Ports[0].Frontends[0].Addr
	row := fmt.Sprintf("%s . tcp . 80 . 0:2", addr)
	repair := func(edits ...string) plane.Plan {
		t.Helper()
		if out, err := runNft(t, netns, strings.Join(edits, "\n"), "-f", "-"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := p.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		plan := p.Plan(route.Change{Table: table})
		if err := plan.Apply(context.Background()); err != nil {
			t.Fatal(err)
		}
		checkSettled(t, conn, table, route.IPv4)
		return plan
	}
	plan := repair(
		fmt.Sprintf("delete element ip sluice backends { %s }", row),
		"add element ip sluice backends { 9.9.9.9 . tcp . 80 . 0:1 : 10.0.0.1 . 80 }",
		fmt.Sprintf("delete element ip sluice backends { %s. tcp . 80 . 0:3 }", addr),
		fmt.Sprintf("add element ip sluice backends { %s. tcp . 80 . 0:3 : 10.9.9.9 . 80 }", addr),
		fmt.Sprintf("delete element ip sluice fronts { %s . tcp . 80 }", addr),
		fmt.Sprintf("delete element ip sluice cluster-ips { %s }", addr),
	)
	if plan.Steps() != 5 {
		t.Errorf("%d steps repair five elements:\n%.2000s", plan.Steps(), plan)
	}
	repair("add element ip sluice backends { * : 10.0.0.1 . 80 }")
	if out, err := runNft(t, netns, "", "get", "element", "ip", "sluice", "backends", "{ "+row+" }"); err != nil {
		t.Errorf("the backend %s is missing: %v\n%s", to, err, out)
	}
}
