package route

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// load fills a change with n Services of three endpoints each.
func load(n int) cluster.Delta {
	c := cluster.Delta{Facts: &cluster.Facts{Node: nodeA()}}
	for i := range n {
		svc := &cluster.Service{
			Name:       cluster.Name{Namespace: "bench", Name: fmt.Sprintf("svc-%06d", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})},
			Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		}
		c.Services = append(c.Services, stateOf(svc, benchSlice(svc, i, 0)))
	}
	return c
}

func benchSlice(svc *cluster.Service, i, turn int) *cluster.Slice {
	var list []cluster.Endpoint
	for j := range 3 {
		list = append(list, cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(4*(turn%2) + j)}),
			Node: "B", Ready: true, Serving: true,
		})
	}
	return sliceOf(svc, "x", list)
}

func benchOptions() Options { return Options{NodeName: "A", Detector: clusterCIDR()} }

// BenchmarkCompileOne is one endpoint change: it costs the same at all sizes.
func BenchmarkCompileOne(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := load(n)
			c := NewCompiler(benchOptions())
			c.Compile(all)
			var turns [2]cluster.State
			svc := all.Services[n/2].Service
			for turn := range turns {
				turns[turn] = stateOf(svc, benchSlice(svc, n/2, turn+1))
			}
			b.ReportAllocs()
			turn := 0
			for b.Loop() {
				got, _ := c.Compile(cluster.Delta{Services: turns[turn%2 : turn%2+1]})
				turn++
				if len(got.Touched) != 1 {
					b.Fatal("nothing changed")
				}
			}
		})
	}
}

// BenchmarkCompileWide is one endpoint change of a large Service.
func BenchmarkCompileWide(b *testing.B) {
	svc := web(external)
	var list []cluster.Endpoint
	for i := range 1000 {
		list = append(list, cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 1, byte(i * 7), byte(i >> 8)}), Ready: true, Serving: true,
		})
	}
	turns := [2]cluster.State{stateOf(svc, sliceOf(svc, "x", list)), stateOf(svc, sliceOf(svc, "x", list[1:]))}
	c := NewCompiler(benchOptions())
	b.ReportAllocs()
	turn := 0
	for b.Loop() {
		c.Compile(cluster.Delta{Services: turns[turn%2 : turn%2+1]})
		turn++
	}
}

// BenchmarkCompileAll is a cold start. It also reports the cost of a Service in memory, the cluster's own values not
// counted.
func BenchmarkCompileAll(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := load(n)
			before := heapInUse()
			b.ReportAllocs()
			var c *Compiler
			for b.Loop() {
				c = NewCompiler(benchOptions())
				c.Compile(all)
			}
			b.ReportMetric(float64(heapInUse()-before)/float64(n), "B/service")
			runtime.KeepAlive(c)
			runtime.KeepAlive(all)
		})
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
