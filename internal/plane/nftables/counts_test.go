package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// listed is a kernel with counters, and the backends of all rows, by set.
type listed struct {
	counters map[string][]nft.Counter
	rows     map[string]string
}

func (l *listed) Counters(_ context.Context, t nft.Table, set string, fn func(nft.Counter)) error {
	for _, c := range l.counters[t.Family.String()+" "+set] {
		fn(c)
	}
	return nil
}

func (l *listed) Find(_ context.Context, t nft.Table, set string, keys []string) (map[string]nft.Found, error) {
	of, found := t.Family.String()+" "+set, map[string]nft.Found{}
	for _, key := range keys {
		if data, has := l.rows[of+" "+key]; has {
			found[key] = nft.Found{Data: data}
		}
		for _, c := range l.counters[of] {
			if c.Key == key {
				found[key] = nft.Found{Counter: c}
			}
		}
	}
	return found, nil
}

// rowOf returns the IP family and the key of a row. A frontend without an address is a NodePort.
func rowOf(front string, row uint32) (family, key string) {
	a, k := netip.MustParseAddrPort(front), nft.Key{}
	if !a.Addr().IsUnspecified() {
		k = k.Addr(a.Addr())
	}
	if family = "ip "; a.Addr().Is6() {
		family = "ip6 "
	}
	return family, rowKey(string(k.Proto(6).Port(a.Port())), row)
}

// count sets the counter of a row in a set.
func (l *listed) count(set, front string, row uint32, n uint64) {
	family, key := rowOf(front, row)
	of := family + set
	l.counters[of] = slices.DeleteFunc(l.counters[of], func(c nft.Counter) bool { return c.Key == key })
	l.counters[of] = append(l.counters[of], nft.Counter{Key: key, Packets: n, Expires: time.Minute})
}

// serve sets the backend of a row in a map.
func (l *listed) serve(in, front string, row uint32, backend string) {
	family, key := rowOf(front, row)
	l.rows[family+in+" "+key] = rowData(netip.MustParseAddrPort(backend))
}

// Elements count for the Service port with the frontend, and for the backend of the row. Those of no Service are left
// out, as those of no row, and what was counted before. After a row has got another backend, it counts for that.
func TestElementsCountForPorts(t *testing.T) {
	routes, kernel := snapshot(planetest.EveryShape()), &listed{map[string][]nft.Counter{}, map[string]string{}}
	kernel.serve("backends", "172.30.0.1:80", 1, "10.180.1.1:8080")
	kernel.serve("backends", "203.0.113.1:80", 2, "10.180.2.1:8080")
	kernel.serve("backends", "172.30.0.2:81", 1, "10.180.2.2:8080") // no port of a Service
	kernel.serve("backends", "[fd00:172:30::1]:80", 1, "[fd00:10:180:1::1]:8080")
	kernel.serve("nodeport-backends", "0.0.0.0:30010", 1, "10.180.1.1:8080")
	kernel.serve("nodeport-outside-backends", "0.0.0.0:30010", 2, "10.180.2.1:8080")
	kernel.count("odd-counts", "172.30.0.1:80", 1, 100)
	c := newCounts(kernel)
	if err := c.read(t.Context(), noPorts); err != nil {
		t.Fatal(err)
	}
	kernel.count("odd-counts", "172.30.0.1:80", 1, 101)
	kernel.count("nodeport-counts", "0.0.0.0:30010", 1, 2)
	kernel.count("nodeport-outside-counts", "0.0.0.0:30010", 2, 3)
	kernel.count("odd-counts", "203.0.113.1:80", 2, 4)
	kernel.count("counts", "172.30.0.2:81", 1, 5)
	kernel.count("odd-counts", "172.30.0.1:80", 9, 600) // no row
	kernel.count("odd-counts", "[fd00:172:30::1]:80", 1, 7)
	if _, err := c.Traffic(t.Context(), routes); err != nil {
		t.Fatal(err)
	}
	id := route.PortID{
		Service: cluster.Name{Namespace: "ns", Name: "svc-1"}, Name: "tcp", Protocol: cluster.TCP, Family: route.IPv4,
	}
	kernel.count("odd-counts", "172.30.0.1:80", 1, 121)
	_, row := rowOf("172.30.0.1:80", 1)
	c.readRows(t.Context(), []changedRow{{
		key{route.IPv4, backendElement.in(byAddress), row}, id, netip.MustParseAddrPort("10.180.1.1:8080"),
	}})
	kernel.serve("backends", "172.30.0.1:80", 1, "10.180.9.9:8080")
	kernel.count("odd-counts", "172.30.0.1:80", 1, 151)
	got, err := c.Traffic(t.Context(), routes)
	if err != nil {
		t.Fatal(err)
	}
	of := func(n uint64) plane.Traffic { return plane.Traffic{plane.Connections: n} }
	id6 := id
	id6.Family = route.IPv6
	want := plane.Counted{
		id: {Traffic: of(60), Backends: map[netip.AddrPort]plane.BackendTraffic{
			netip.MustParseAddrPort("10.180.1.1:8080"): {Connections: 23},
			netip.MustParseAddrPort("10.180.2.1:8080"): {Connections: 7},
			netip.MustParseAddrPort("10.180.9.9:8080"): {Connections: 30},
		}},
		id6: {Traffic: of(7), Backends: map[netip.AddrPort]plane.BackendTraffic{
			netip.MustParseAddrPort("[fd00:10:180:1::1]:8080"): {Connections: 7},
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func snapshot(s *cluster.Store) *route.Snapshot {
	c := route.NewCompiler(route.Options{NodeName: "a", Families: route.Families()})
	c.Compile(s.Take())
	return c.Snapshot()
}

// Comparisons leave elements with counters alone, and what nft lists with them can be loaded again.
func TestCountersAreLoadedAgain(t *testing.T) {
	conn, netns := realKernel(t)
	change := planetest.Compile(planetest.EveryShape(), route.Options{})
	load(t, conn, change)
	const add = "add element ip sluice odd-counts " +
		"{ 172.30.0.1 . tcp . 80 . 0:1 counter packets 3 bytes 180 timeout 1h }\n" +
		"add element ip6 sluice nodeport-counts { udp . 53 . 0:1 counter packets 4 bytes 9 timeout 1h }\n"
	nftables := func(input string, args ...string) string {
		t.Helper()
		out, err := runNft(t, netns, input, args...)
		if err != nil {
			t.Fatalf("%v\n%.2000s", err, out)
		}
		return out
	}
	nftables(add, "-f", "-")
	checkSettled(t, conn, change.Table)
	nftables("flush ruleset\n"+nftables("", "list", "ruleset"), "-f", "-")
	for table, want := range map[nft.Table]struct {
		set     string
		packets uint64
	}{bothTables[0]: {"odd-counts", 3}, bothTables[1]: {"nodeport-counts", 4}} {
		var list []nft.Counter
		err := conn.Counters(t.Context(), table, want.set, func(c nft.Counter) { list = append(list, c) })
		if err != nil || len(list) != 1 || list[0].Packets != want.packets {
			t.Errorf("%s: got %v, %v, want %d packets", table, list, err, want.packets)
		}
	}
}

// growing are counters of the kernel with more connections each time that they are read.
type growing struct {
	counters

	times uint64
}

func (g *growing) Counters(ctx context.Context, t nft.Table, set string, fn func(nft.Counter)) error {
	g.times++
	return g.counters.Counters(ctx, t, set, func(c nft.Counter) { c.Packets += g.times; fn(c) })
}

// BenchmarkTraffic reads the counters of 10,000 Services with three backends each, all of which had new connections.
func BenchmarkTraffic(b *testing.B) {
	const services = 10_000
	conn, routes := busyServices(b, services)
	c := newCounts(&growing{counters: conn})
	if _, err := c.Traffic(b.Context(), routes); err != nil { // finds the backends of the rows, once
		b.Fatal(err)
	}
	b.ReportAllocs()
	began := cpuTime(b)
	for b.Loop() {
		if all, err := c.Traffic(b.Context(), routes); err != nil || len(all) != services {
			b.Fatalf("%d ports, %v", len(all), err)
		}
	}
	b.ReportMetric((cpuTime(b)-began)/float64(b.N), "cpu-ms/op")
}

// BenchmarkReadRows reads the counters of two rows among 30,000, as before a change of an endpoint.
func BenchmarkReadRows(b *testing.B) {
	conn, _ := busyServices(b, 10_000)
	c := newCounts(conn)
	var rows []changedRow
	for row := range uint32(2) {
		_, name := rowOf("172.16.1.1:80", row+1)
		rows = append(rows, changedRow{key: key{route.IPv4, backendElement.in(byAddress), name}})
	}
	b.ReportAllocs()
	for b.Loop() {
		c.readRows(b.Context(), rows)
	}
}

// busyServices loads Services with three backends each into a kernel, whose counters are not 0.
func busyServices(b *testing.B, services int) (*nft.Conn, *route.Snapshot) {
	b.Helper()
	s := cluster.NewStore()
	var elements strings.Builder
	for i := range services {
		name := cluster.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
		addr := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		s.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{addr}, Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		slice := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}}
		for k := range 3 {
			pod := netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}).String()
			slice.Endpoints = append(slice.Endpoints, planetest.Endpoint(pod, "b"))
			const add = "add element ip sluice %s { %s . tcp . 80 . 0:%d counter packets %d bytes 1 timeout 1h }\n" +
				"add element ip sluice backends { %s . tcp . 80 . 0:%d : %s . 8080 }\n"
			set := [...]string{"counts", "odd-counts"}[i%2]
			fmt.Fprintf(&elements, add, set, addr, k+1, 1+i+k, addr, k+1, pod)
		}
		s.SetSlice(slice)
	}
	conn, netns := realKernel(b)
	load(b, conn, planetest.Compile(planetest.EveryShape(), route.Options{}))
	if out, err := runNft(b, netns, elements.String(), "-f", "-"); err != nil {
		b.Fatalf("%v\n%.2000s", err, out)
	}
	return conn, snapshot(s)
}

// cpuTime returns the milliseconds that this process has used a CPU.
func cpuTime(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}
