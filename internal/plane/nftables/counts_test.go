package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
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

// listedCounters are the counters that a kernel lists, by table.
type listedCounters map[nft.Table][]nft.Counter

func (l listedCounters) Counters(_ context.Context, t nft.Table, set string, fn func(nft.Counter)) error {
	switch set {
	case "tcp-counts":
		for _, c := range l[t] {
			fn(c)
		}
	case "odd-tcp-counts", "udp-counts", "sctp-counts":
	default:
		return errors.New("no such set: " + set)
	}
	return nil
}

// counterOf returns the element of connections to an address that a backend gets.
func counterOf(to, backend string, n uint64) nft.Counter {
	a, b := netip.MustParseAddrPort(to), netip.MustParseAddrPort(backend)
	key := nft.Key{}.Addr(b.Addr()).Port(b.Port()).Addr(a.Addr()).Port(a.Port())
	return nft.Counter{Key: string(key), Packets: n, Expires: time.Minute}
}

// Elements count for the Service port with the frontend, at any address of the node if that is a NodePort. Connections
// that others translate are left out, and so are those that were counted before.
func TestElementsCountForPorts(t *testing.T) {
	routes := snapshot(planetest.EveryShape())
	v4, v6 := bothTables[0], bothTables[1]
	kernel := listedCounters{v4: {counterOf("172.30.0.1:80", "10.180.1.1:8080", 100)}}
	c := newCounts(kernel)
	if err := c.read(t.Context(), noPorts); err != nil {
		t.Fatal(err)
	}
	kernel[v4] = []nft.Counter{
		counterOf("172.30.0.1:80", "10.180.1.1:8080", 101),
		counterOf("192.168.0.2:30010", "10.180.1.1:8080", 2),
		counterOf("192.168.1.2:30010", "10.180.2.1:8080", 3),
		counterOf("203.0.113.1:80", "10.180.2.1:8080", 4),
		counterOf("172.30.0.2:81", "10.180.2.2:8080", 5),      // no port of a Service
		counterOf("198.51.100.99:80", "172.17.0.2:8080", 600), // another program
	}
	kernel[v6] = []nft.Counter{counterOf("[fd00:172:30::1]:80", "[fd00:10:180:1::1]:8080", 7)}
	got, err := c.Traffic(t.Context(), routes)
	if err != nil {
		t.Fatal(err)
	}
	of := func(n uint64) plane.Traffic { return plane.Traffic{plane.Connections: n} }
	id := route.PortID{
		Service: cluster.Name{Namespace: "ns", Name: "svc-1"}, Name: "tcp", Protocol: cluster.TCP, Family: route.IPv4,
	}
	id6 := id
	id6.Family = route.IPv6
	want := plane.Counted{
		id: {Traffic: of(10), Backends: map[netip.AddrPort]plane.BackendTraffic{
			netip.MustParseAddrPort("10.180.1.1:8080"): {Connections: 3},
			netip.MustParseAddrPort("10.180.2.1:8080"): {Connections: 7},
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
	const add = "add element ip sluice odd-tcp-counts " +
		"{ 10.180.1.1 . 8080 . 172.30.0.1 . 80 counter packets 3 bytes 180 timeout 1h }\n" +
		"add element ip6 sluice udp-counts " +
		"{ fd00:10:180:1::1 . 53 . fd00:172:30::1 . 80 counter packets 4 bytes 9 timeout 1h }\n"
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
	}{bothTables[0]: {"odd-tcp-counts", 3}, bothTables[1]: {"udp-counts", 4}} {
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
			const add = "add element ip sluice %s { %s . 8080 . %s . 80 counter packets %d bytes 1 timeout 1h }\n"
			fmt.Fprintf(&elements, add, [...]string{"tcp-counts", "odd-tcp-counts"}[i%2], pod, addr, 1+i+k)
		}
		s.SetSlice(slice)
	}
	conn, netns := realKernel(b)
	load(b, conn, planetest.Compile(planetest.EveryShape(), route.Options{}))
	if out, err := runNft(b, netns, elements.String(), "-f", "-"); err != nil {
		b.Fatalf("%v\n%.2000s", err, out)
	}
	c, routes := newCounts(&growing{counters: conn}), snapshot(s)
	b.ReportAllocs()
	began := cpuTime(b)
	for b.Loop() {
		if all, err := c.Traffic(b.Context(), routes); err != nil || len(all) != services {
			b.Fatalf("%d ports, %v", len(all), err)
		}
	}
	b.ReportMetric((cpuTime(b)-began)/float64(b.N), "cpu-ms/op")
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
