package ipvs

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// Each Service port has what the kernel counts for its virtual servers. The sums never fall: not if a virtual server is
// deleted, nor if it is added again and counts from 0.
func TestTrafficIsCountedByServicePort(t *testing.T) {
	fake := newFake()
	change, one := oneService("10.0.0.1:80", "10.0.0.2:80")
	two := *one
	two.Ports = []route.Port{one.Ports[0]}
	two.Ports[0].Frontends = append(two.Ports[0].Frontends[:1:1],
		route.Frontend{Kind: route.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80})
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	c := newCounter(fake.servers, func() *marks { return p.marks })
	r := metricstest.Registry(c)
	written(t, p, change)
	c.Applied(change)
	applied := func(old, now *route.Service) {
		c.Applied(route.Change{Table: change.Table, Touched: []route.Touch{{Name: one.Name, Old: old, New: now}}})
	}
	update(t, p, one, &two)
	applied(one, &two)

	cluster4 := ipvs.Server{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(cluster.TCP), Port: 80}
	external := ipvs.Server{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: uint8(cluster.TCP), Port: 80}
	fake.servers.Connections = func(ipvs.Server, netip.AddrPort) int { return 1 }
	expect := func(after string, traffic map[ipvs.Server]ipvs.Stats, connections, received, sent, open int) {
		t.Helper()
		const of = `{ip_family="IPv4", namespace="default", port="http", protocol="tcp", service="web"}`
		want := fmt.Sprintf("sluice_ipvs_connections_total%[1]s %[2]d\nsluice_ipvs_inactive_connections%[1]s %[3]d\n"+
			"sluice_ipvs_received_bytes_total%[1]s %[4]d\nsluice_ipvs_sent_bytes_total%[1]s %[5]d",
			of, connections, open, received, sent)
		fake.servers.Stats = func(s ipvs.Server) ipvs.Stats { return traffic[s] }
		if got := metricstest.Values(t, r, ""); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", after, got, want)
		}
	}
	expect("two virtual servers", map[ipvs.Server]ipvs.Stats{
		cluster4: {Connections: 3, Received: 30, Sent: 300}, external: {Connections: 2, Received: 20, Sent: 200},
	}, 5, 50, 500, 4)
	expect("a repair", map[ipvs.Server]ipvs.Stats{
		cluster4: {Connections: 1, Received: 10, Sent: 100}, external: {Connections: 4, Received: 40, Sent: 400},
	}, 8, 80, 800, 4)
	update(t, p, &two, one)
	applied(&two, one)
	expect("one virtual server less", map[ipvs.Server]ipvs.Stats{
		cluster4: {Connections: 2, Received: 20, Sent: 200}, external: {Connections: 4, Received: 40, Sent: 400},
	}, 9, 90, 900, 2)
	applied(one, nil)
	if got := metricstest.Values(t, r, ""); got != "" {
		t.Errorf("got\n%s\nfor a Service that is gone", got)
	}
}

// A Service with a packet mark that is deleted during a comparison, which begins with other marks, leaves nothing.
func TestMarksOfDeletedServicesAreNotCounted(t *testing.T) {
	change, svc := oneService("10.0.0.1:80")
	plane := newMarks()
	plane.mark(svc.Ports[0].ID(svc.Name))
	c := newCounter(newFake().servers, func() *marks { return plane })
	c.Applied(change)
	if len(c.ports) != 2 {
		t.Fatalf("virtual servers %v, want one with an address and one with a mark", c.ports)
	}
	plane = newMarks()
	c.Applied(route.Change{Table: &route.Table{}, Touched: []route.Touch{{Name: svc.Name, Old: svc}}})
	if len(c.ports) != 0 || len(c.marked) != 0 {
		t.Errorf("left %v, %v", c.ports, c.marked)
	}
}

// The kernel counts connections and bytes, which are in the list of virtual servers.
func TestTrafficOnTheKernel(t *testing.T) {
	const at = "127.0.0.1:8080"
	kernel, netns := realKernel(t)
	change, _ := oneService(at)
	prepared(t, netns)
	p := New(kernel, Options{Families: route.Families()[:1], Mark: 0x4000})
	written(t, p, change)
	listen(t, netns, at)
	for range 3 {
		ask(t, dial(t, netns))
	}
	list, err := kernel.Servers.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got := list[0].Stats
		if got.Connections == 3 && got.Received > 0 && got.Sent > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", got)
		}
		if list, err = kernel.Servers.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The documents and the dashboard have the names of all metrics, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)
	newCounter(newFake().servers, newMarks).Describe(descs)
	close(descs)
	names := regexp.MustCompile(`sluice_ipvs_\w+`)
	var want []string
	for d := range descs {
		want = append(want, names.FindString(d.String()))
	}
	slices.Sort(want)
	for _, file := range []string{"docs/ipvs.md", "deploy/helm/sluice/files/dashboard.json"} {
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		got := names.FindAllString(string(text), -1)
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
}
