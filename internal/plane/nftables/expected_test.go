package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// Every element is expected that a new cluster of every shape needs.
func TestExpectedKeysAreComplete(t *testing.T) {
	fake := nft.NewFake()
	opt := route.Options{
		NodeName: "a", Families: route.Families(), Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR},
	}
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
		for _, set := range p.layout.expected() {
			keys := map[string]bool{}
			for key := range set.Keys(state) {
				keys[key] = true
			}
			elements := state.Sets[set.Set].Elements
			if len(elements) == 0 {
				t.Errorf("%s: the cluster needs no %s", table, set.Set)
			}
			for key := range elements {
				if !keys[key] {
					t.Errorf("%s %s: %x is not expected", table, set.Set, key)
				}
			}
		}
	}
}

// The expected have the numbers of clients from when a port had more endpoints.
func TestGuessesForClientsFromBefore(t *testing.T) {
	many, few := numberedService(1), numberedService(1)
	for i := range 40 {
		many.Ports[0].Cluster = append(many.Ports[0].Cluster,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))
	}
	few.Ports[0].Cluster = many.Ports[0].Cluster[30:35]
	affinity(many, few)
	fake, table := nft.NewFake(), &route.Table{Services: map[cluster.Name]*route.Service{many.Name: many}}
	p := load(t, fake, route.Change{Table: table}, route.IPv4)
	table.Services[few.Name] = few
	if err := p.Plan(route.Change{
		Table: table, Touched: []route.Touch{{Name: few.Name, Old: many, New: few}},
	}).Apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	state, keys := fake.Tables[bothTables[0]], map[string]bool{}
	for key := range p.layout.expected()[0].Keys(state) {
		keys[key] = true
	}
	rows, named := state.Sets["backends"].Elements, actionOf(t, state).drawn()
	if len(rows) <= 5 || named >= 40 {
		t.Fatalf("%d rows, and %d numbers to draw: want rows from before", len(rows), named)
	}
	for key := range rows {
		if !keys[key] {
			t.Errorf("%x is not expected", key)
		}
	}
}

// actionOf returns the action of the only frontend.
func actionOf(t *testing.T, state *nft.State) action {
	t.Helper()
	for _, e := range state.Sets["fronts"].Elements.All() {
		return actionIn(e.Data)
	}
	t.Fatal("there is no frontend")
	return 0
}

// A load in parts, and a start over sets that are read by their keys, which both need many
// Services. Edits by another program are found and undone.
func TestManyServices(t *testing.T) {
	seeds.Long(t)
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
	if out, err := runNft(t, netns, "", "get", "element", "ip", "sluice", "backends", "{ "+row+" }"); err != nil {
		t.Errorf("the backend %s is missing: %v\n%s", to, err, out)
	}
}
