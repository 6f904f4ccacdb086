package kube

import (
	"bufio"
	"bytes"
	"fmt"
	"runtime"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// BenchmarkRelist replaces 10,000 Services with three endpoints by equal ones, and reports
// the heap size of each in the Store.
func BenchmarkRelist(b *testing.B) {
	const n = 10000
	lists := func() (services, slices []object) {
		for i := range n {
			ip := fmt.Sprintf("%d.%d", i>>8, i&255)
			services = append(services, service(fmt.Sprintf("s%d", i), "10.96."+ip))
			es := endpointSlice(fmt.Sprintf("s%d-x", i), fmt.Sprintf("s%d", i), "10.1."+ip)
			for j := range 2 {
				es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.%d.%s", j+2, ip)}, NodeName: new(fmt.Sprintf("n%d", i%100)),
				})
			}
			slices = append(slices, es)
		}
		return services, slices
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	store := cluster.NewStore()
	src := New(store, Options{Client: clientOf(b, "http://127.0.0.1:1"), NodeName: "n1"})
	before := heap()
	for b.Loop() {
		b.StopTimer()
		services, slices := lists()
		b.StartTimer()
		replace(b, src.feeds[0].to, services)
		replace(b, src.feeds[1].to, slices)
		store.Take()
	}
	b.ReportMetric(float64(heap()-before)/n, "heap-B/service")
	runtime.KeepAlive(store)
}

// BenchmarkList reads lists of 10,000 Services and EndpointSlices, of the size that
// controllers and Helm make them, into a Store.
func BenchmarkList(b *testing.B) {
	const n = 10_000
	c := &largeCluster{b: b, n: n}
	var services, endpointSlices bytes.Buffer
	c.list(&services, servicesPath, protobufItem(b, largeService()))
	c.list(&endpointSlices, slicesPath, protobufItem(b, largeSlice()))
	client := clientOf(b, "http://127.0.0.1:1")
	for b.Loop() {
		src := New(cluster.NewStore(), Options{Client: client, NodeName: "n1"})
		read(b, client.services(""), src.feeds[0].to, services.Bytes())
		read(b, client.slices, src.feeds[1].to, endpointSlices.Bytes())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/service")
	b.SetBytes(int64(services.Len() + endpointSlices.Len()))
}

// read passes an answer to a sink.
func read(b *testing.B, from lister, to *sink, answer []byte) {
	b.Helper()
	to.begin()
	if _, err := from.(*resource).decode(bufio.NewReaderSize(bytes.NewReader(answer), 64<<10), to.arrive); err != nil {
		b.Fatal(err)
	}
	if err := to.Replace(nil, ""); err != nil {
		b.Fatal(err)
	}
}

// replace passes a complete list to a sink.
func replace(t testing.TB, s *sink, list []object) {
	t.Helper()
	s.begin()
	for _, obj := range list {
		if err := s.arrive(obj); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
}
