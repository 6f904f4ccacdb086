package ebpf_test

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

// sticky sets a Service with session affinity, at a ClusterIP and a NodePort, and its backends.
func sticky(s *cluster.Store, backends []string) {
	s.SetNode(planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	name := cluster.Name{Namespace: "ns", Name: "web"}
	s.SetService(&cluster.Service{
		Name: name, Type: cluster.NodePort, ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.1")}, Affinity: time.Hour,
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
	})
	sl := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}}
	for _, b := range backends {
		sl.Endpoints = append(sl.Endpoints, planetest.Endpoint(b, "a"))
	}
	s.SetSlice(sl)
}

// Sockets and packets of a client go to the same backend, at all addresses of the Service. With a lease, sockets connect without the rules.
func TestAffinityOfSocketsAndPackets(t *testing.T) {
	kerneltest.NeedPrograms(t)
	addrs := []string{"10.180.0.11", "10.180.0.12", "10.180.0.13", "10.180.0.14", "10.180.0.15", "10.180.0.16"}
	l := lab.New(t, lab.Options{Cgroups: true})
	for _, a := range addrs {
		l.Pod(l.NodeA, a).Serve(lab.TCP, 8080)
	}
	pod := l.Pod(l.NodeA, "10.180.0.2")
	at := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: l.NodeA.Cgroup()}
	opened, err := ebpf.Kind(nftables.Kind()).Open(t.Context(), plane.Setup{
		Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}, NetNS: l.NodeA.NetNSFD(), Families: planetest.Families(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		parts.Wait()
		_, err := opened.Plane.Remove(context.Background())
		if err != nil {
			t.Error(err)
		}
		_ = opened.Close() // nothing is left to lose
	})
	for _, p := range opened.Parts {
		if p.Run != nil {
			parts.Go(func() { _ = p.Run(ctx) }) // it ends with the test
		}
	}
	options := route.Options{Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}, NodeName: "a"}
	compiler := route.NewCompiler(options)
	store := cluster.NewStore()
	sticky(store, addrs)
	write := func() {
		t.Helper()
		change, _ := compiler.Compile(store.Take())
		if err := opened.Plane.Plan(change).Apply(ctx); err != nil {
			t.Fatal(err)
		}
		for _, p := range opened.Parts {
			if p.Follower != nil {
				p.Follower.Applied(change)
			}
		}
	}
	if err := opened.Plane.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	write()
	conn, err := bpf.Open(bpf.Options{Dir: at.Dir, Cgroup: at.Cgroup, NetNS: l.NodeA.NetNSFD()})
	if err != nil {
		t.Fatal(err)
	}
	atSockets := func() (n uint64) {
		counts, err := conn.Counts()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counts {
			n += c
		}
		return n
	}
	clusterIP, nodePort := netip.MustParseAddrPort("172.30.0.1:80"), netip.AddrPortFrom(l.NodeA.Addr4(), 30080)
	for _, client := range []*lab.Host{pod, l.NodeA} {
		before := atSockets()
		var keeps netip.AddrPort
		end := time.Now().Add(time.Minute)
		for i := 0; i < 40 || atSockets()-before < 10 && time.Now().Before(end); i++ {
			for _, from := range []*lab.Host{client, client.WithoutCgroup()} {
				r := from.Dial(lab.TCP, clusterIP)
				if r.Outcome != lab.Answered {
					t.Fatalf("%s: %s", client.Name(), r)
				}
				if i == 0 && !keeps.IsValid() {
					keeps = r.Backend
				}
				if r.Backend != keeps {
					t.Fatalf("%s: connection %d goes to %s after %s", client.Name(), i, r.Backend, keeps)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		if n := atSockets() - before; n < 10 {
			t.Errorf("%s: %d connections were decided at its sockets, want 10 or more", client.Name(), n)
		}
		if r := client.Dial(lab.TCP, nodePort); client == pod && r.Backend != keeps {
			t.Errorf("%s: the NodePort leads to %s, and the ClusterIP to %s", client.Name(), r, keeps)
		}
	}
	keeps := pod.Dial(lab.TCP, clusterIP).Backend
	sticky(store, slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return a == keeps.Addr().String() }))
	write()
	next := pod.Dial(lab.TCP, clusterIP).Backend
	sticky(store, addrs) // the backend comes back, but the packet plane has chosen another one
	write()
	for range 40 {
		for _, from := range []*lab.Host{pod, pod.WithoutCgroup()} {
			if r := from.Dial(lab.TCP, clusterIP); r.Outcome != lab.Answered || r.Backend != next || next == keeps {
				t.Fatalf("after its backend %s was away, %s goes to %s, then %s", keeps, from.Name(), next, r)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}
