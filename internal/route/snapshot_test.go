package route

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// many returns a store with n Services of one endpoint.
func many(n int) *cluster.Store {
	store := cluster.NewStore()
	for i := range n {
		store.SetService(numbered(i))
	}
	return store
}

func numbered(i int) *cluster.Service {
	return &cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: fmt.Sprintf("service-%06d", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
}

// A Snapshot is of one moment: later changes are not in it.
func TestASnapshotDoesNotChange(t *testing.T) {
	store, c := many(1000), NewCompiler(Options{})
	c.Compile(store.Take())
	var before []*Service
	s := c.Snapshot()
	for svc := range s.Services() {
		before = append(before, svc)
	}
	for i := range 1000 {
		if i%2 == 0 {
			store.DeleteService(numbered(i).Name)
			continue
		}
		svc := numbered(i)
		svc.Ports[0].Port = 81
		store.SetService(svc)
	}
	c.Compile(store.Take())
	i := 0
	for svc := range s.Services() {
		if svc != before[i] || svc != s.Service(svc.Name) || svc != s.Table().Services[svc.Name] {
			t.Fatalf("Service %s is not as it was", svc.Name)
		}
		i++
	}
	if i != 1000 || s.Len() != 1000 {
		t.Errorf("%d Services, Len %d, want 1000", i, s.Len())
	}
	if now := c.Snapshot(); now.Len() != 500 || len(c.Table().Services) != 500 {
		t.Errorf("%d Services now, %d in the table, want 500", now.Len(), len(c.Table().Services))
	}
}

// Snapshots are read while Services change. The race detector verifies this.
func TestSnapshotsAreReadDuringChanges(t *testing.T) {
	const n = 300
	store, c := many(n), NewCompiler(Options{})
	c.Compile(store.Take())
	var readers sync.WaitGroup
	for round := range uint16(30) {
		s := c.Snapshot()
		readers.Go(func() {
			for svc := range s.Services() {
				if port := svc.Ports[0].Frontends[0].Port; port != 80+round {
					t.Errorf("the snapshot before round %d has the port %d", round, port)
					return
				}
			}
		})
		for i := range n {
			svc := numbered(i)
			svc.Ports[0].Port = 81 + round
			store.SetService(svc)
		}
		c.Compile(store.Take())
	}
	readers.Wait()
}

// A Snapshot and a table say the same, and a name that is not there is nothing.
func TestASnapshotAgreesWithTheTable(t *testing.T) {
	c := NewCompiler(Options{})
	c.Compile(many(100).Take())
	s := c.Snapshot()
	for name, svc := range c.Table().Services {
		if s.Service(name) != svc {
			t.Errorf("%s differs", name)
		}
	}
	nobody := cluster.Name{Namespace: "default", Name: "nobody"}
	if s.Service(nobody) != nil || s.Problems(nobody) != nil || s.Explain(nobody, &Port{}, Cluster) != nil {
		t.Error("a Service that is not there has something")
	}
}

// Neither a Snapshot nor the change after it costs more with more Services.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		store, c := many(n), NewCompiler(Options{})
		c.Compile(store.Take())
		b.Run(fmt.Sprintf("take/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = c.Snapshot()
			}
		})
		for _, asked := range []string{"asked", "not-asked"} {
			b.Run(fmt.Sprintf("change-%s/%d", asked, n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					svc := numbered(i * 7919 % n)
					svc.Ports[0].Port = uint16(1 + i%60000)
					store.SetService(svc)
					if asked == "asked" {
						_ = c.Snapshot()
					}
					c.Compile(store.Take())
				}
			})
		}
	}
}
