package nftables

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

var golden = planetest.Golden()

// testCluster is a small cluster with a plane.
type testCluster struct {
	*testing.T
	store    *cluster.Store
	compiler *route.Compiler
	plane    *Plane
}

func newTestCluster(t *testing.T, kernel Kernel) *testCluster {
	t.Helper()
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24"))
	s.SetServiceCIDRs(planetest.Prefixes("172.30.0.0/16"))
	s.SetLocalAddresses(planetest.Addrs("127.0.0.1", "192.168.0.2"))
	opt := route.Options{
		NodeName: "a", Families: route.Families()[:1], Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR},
	}
	st := &testCluster{t, s, route.NewCompiler(opt), New(kernel, Options{Families: opt.Families, Mark: testMark})}
	if err := st.plane.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	return st
}

// sync plans and applies what changed, and returns the plan's text.
func (s *testCluster) sync() string {
	s.Helper()
	change, problems := s.compiler.Compile(s.store.Take())
	if len(problems) > 0 {
		s.Fatal(problems)
	}
	plan := s.plane.Plan(change)
	text := plan.String()
	if err := plan.Apply(context.Background()); err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
	if n := strings.Count(text, "\n"); plan.Steps() == 0 != (n == 0) {
		s.Errorf("%d steps print as %d lines", plan.Steps(), n)
	}
	return text
}

func (s *testCluster) endpoints(name string, list ...cluster.Endpoint) {
	svc := cluster.Name{Namespace: "shop", Name: name}
	s.store.SetSlice(&cluster.Slice{Name: svc, Service: svc, Endpoints: list, Ports: []cluster.SlicePort{
		{Name: "http", Protocol: cluster.TCP, Port: 8080},
	}})
}

func (s *testCluster) service(name string, change func(*cluster.Service)) {
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: name}, ClusterIPs: planetest.Addrs("172.30.0.10"),
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	change(svc)
	s.store.SetService(svc)
}

// Plans are printed as nft commands, one step per line.
func TestPlansArePrintedAsNftCommands(t *testing.T) {
	s := newTestCluster(t, nft.NewFake())
	s.service("web", func(svc *cluster.Service) {
		svc.Type, svc.Ports[0].NodePort, svc.ExternalLocal = cluster.LoadBalancer, 30080, true
		svc.LoadBalancerIPs = planetest.Addrs("203.0.113.1")
		svc.Restricted, svc.SourceRanges = true, planetest.Prefixes("198.51.100.0/24")
	})
	s.endpoints("web", planetest.Endpoint("10.180.0.1", "a"), planetest.Endpoint("10.180.1.1", "b"))
	s.service("cart", func(svc *cluster.Service) {
		svc.ClusterIPs, svc.Affinity = planetest.Addrs("172.30.0.11"), 3*time.Hour
	})
	s.endpoints("cart", planetest.Endpoint("10.180.0.2", "a"), planetest.Endpoint("10.180.1.2", "b"))
	golden(t, "start.nft", s.sync())

	s.endpoints("web", planetest.Endpoint("10.180.0.1", "a"), planetest.Endpoint("10.180.1.1", "b"),
		planetest.Endpoint("10.180.1.3", "b"))
	golden(t, "scale-up.nft", s.sync())
	s.endpoints("web", planetest.Endpoint("10.180.0.1", "a"), planetest.Endpoint("10.180.1.3", "b"),
		planetest.Endpoint("10.180.1.4", "b"))
	golden(t, "replace.nft", s.sync())
	s.endpoints("cart", planetest.Endpoint("10.180.1.2", "b"))
	golden(t, "sticky-backend-gone.nft", s.sync())
	s.store.DeleteService(cluster.Name{Namespace: "shop", Name: "web"})
	golden(t, "delete.nft", s.sync())
	if text := s.sync(); text != "" {
		t.Errorf("a plan without changes is\n%s", text)
	}
}

// nft accepts every line of a plan, for every kind of rule, and its own listing of the result.
func TestNftAcceptsAPlan(t *testing.T) {
	seeds.Long(t)
	for name, opt := range planetest.Detectors() {
		t.Run(name, func(t *testing.T) {
			_, netns := realKernel(t)
			p := newPlane(nft.NewFake())
			if err := p.Refresh(context.Background()); err != nil {
				t.Fatal(err)
			}
			plan := p.Plan(planetest.Compile(planetest.EveryShape(), opt)).String()
			for lines := range slices.Chunk(slices.Collect(strings.Lines(plan)), 200) { // the buffer of nft may be small
				if out, err := runNft(t, netns, strings.Join(lines, ""), "-f", "-"); err != nil {
					t.Fatalf("%v\n%.3000s", err, out)
				}
			}
			listing, err := runNft(t, netns, "", "list", "ruleset")
			if err != nil {
				t.Fatalf("%v\n%.3000s", err, listing)
			}
			_, other := realKernel(t)
			for _, table := range strings.SplitAfter(listing, "\n}\n") {
				if out, err := runNft(t, other, table, "-f", "-"); err != nil {
					t.Errorf("nft does not accept its own listing: %v\n%.3000s", err, out)
				}
			}
		})
	}
}

// Every chain that the plane wrote can be listed by name: no name is a keyword of nft.
func TestEveryChainListsByName(t *testing.T) {
	conn, netns := realKernel(t)
	load(t, conn, planetest.Compile(planetest.EveryShape(), planetest.Detectors()["primary"]))
	for _, table := range bothTables {
		state, err := conn.Read(context.Background(), table, nil)
		if err != nil {
			t.Fatal(err)
		}
		var script strings.Builder
		for name := range state.Chains {
			script.WriteString("list chain " + table.String() + " " + name + "\n")
		}
		for name := range state.Sets {
			script.WriteString("list set " + table.String() + " " + name + "\n")
		}
		asMaps := strings.ReplaceAll(script.String(), "list set", "list map")
		if out, err := runNft(t, netns, asMaps, "-c", "-f", "-"); strings.Contains(out, "syntax error") {
			t.Errorf("%v\n%.3000s", err, out)
		}
	}
}
