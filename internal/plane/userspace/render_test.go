package userspace

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// The plans for a cluster with every kind of Service. The ports are those of every node.
func TestPrintedPlans(t *testing.T) {
	change := planetest.Compile(planetest.EveryShape(), route.Options{Families: route.Families()})
	for name, r := range map[string]*rig{"loopback.txt": newRig(t, Options{}), "rules.txt": newRuleRig(t, Options{})} {
		r.ok(r.Refresh(t.Context()))
		plan, is := r.Plan(change).(*Plan)
		if !is {
			t.Fatal("it is another plan")
		}
		golden(t, name, plan.sockets.String())
		r.ok(plan.Apply(t.Context()))
		planetest.Settled(t, r, change.Table)
	}
}

// A target is printed completely, as equal texts mean equal targets.
func TestPrintedTargets(t *testing.T) {
	p := tcp(80, "10.0.0.1:80", "10.0.0.2:80")
	p.Local = p.Cluster[:1]
	p.Weights = map[netip.AddrPort]uint16{p.Cluster[1]: 3}
	p.Affinity = 3 * time.Hour
	for scheduler, want := range map[string]string{
		"": "rr", "rr": "rr", "lc": "lc", "wlc": "lc", "sh": "sh", "mh": "sh",
		"p2c": "lc", "sed": "lc", "fo": "rr", "other": "rr",
	} {
		p.Scheduler = scheduler
		want += " affinity 3h0m0s cluster 10.0.0.1:80 10.0.0.2:80*3 local 10.0.0.1:80"
		if got := describe(newRig(t, Options{}).targetOf(&p)); got != want {
			t.Errorf("scheduler %q: %s, want %s", scheduler, got, want)
		}
	}
	if got := describe(&relay.Target{}); got != "rr" {
		t.Errorf("an empty target is %q", got)
	}
}

// Ports with equal names are different ports.
func TestPortsWithEqualNames(t *testing.T) {
	r := newRig(t, Options{})
	r.ok(r.load(service("a", tcp(80, backend), tcp(81, backend), over(tcp(81, backend), cluster.UDP))))
	want := []plane.Socket{
		{Service: svcName("a"), Protocol: cluster.TCP, At: at("127.0.0.1:8080")[0]},
		{Service: svcName("a"), Port: "p2", Protocol: cluster.TCP, At: at("127.0.0.1:8081")[0]},
		{Service: svcName("a"), Protocol: cluster.UDP, At: at("127.0.0.1:8081")[0]},
	}
	if diff := cmp.Diff(want, r.Sockets(), cmp.Comparer(equalSockets)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// SCTP has no socket, and packets to its ports are rejected; Services that are ignored or have no backend have neither.
func TestWithoutSockets(t *testing.T) {
	r := newRuleRig(t, Options{})
	ignored := service("ignored", tcp(81, backend))
	ignored.Ignored = "headless"
	rejected := tcp(82)
	no := route.Action{Verdict: route.Reject}
	rejected.Frontends[0].Pods, rejected.Frontends[0].Node, rejected.Frontends[0].Others = no, no, no
	r.ok(r.load(service("a", over(tcp(80, backend), cluster.SCTP)), ignored, service("b", rejected)))
	if len(r.engine.open) != 0 || len(r.rules.rules) != 0 || len(r.ports.at) != 0 {
		t.Errorf("open are %v, the rules %v", r.Sockets(), r.rules.rules)
	}
}

// What the balancer knows: the weight and connections of each backend.
func TestBalance(t *testing.T) {
	r := newRig(t, Options{})
	p := tcp(81, backend, "127.0.0.1:10")
	p.Scheduler, p.Weights = "wlc", map[netip.AddrPort]uint16{p.Cluster[1]: 5}
	svc := service("a", tcp(80, backend), p)
	for _, want := range []plane.Balance{
		{}, {p.Cluster[0]: {Weight: 1}, p.Cluster[1]: {Weight: 5}}, // none before the socket is open
	} {
		got, err := r.Balance(t.Context(), svc, 1, nil)
		r.ok(err)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		r.ok(r.load(svc))
	}
}

// Each metric has the value of its counter.
func TestMetricValues(t *testing.T) {
	counts := func() map[route.PortID]relay.Counts {
		return map[route.PortID]relay.Counts{
			{Service: svcName("a"), Protocol: cluster.TCP, Family: route.IPv6, Name: "http"}: {
				Open: 1, Connections: 2, Received: 3, Sent: 4, Retries: 5, Failures: 6,
			},
		}
	}
	stats := func() relay.Stats {
		return relay.Stats{Refused: map[string]int64{"connections": 8, "flows": 9}, Unreported: 10}
	}
	const labels = `{ip_family="IPv6", namespace="ns", port="http", protocol="tcp", service="a"} `
	want := "connections_total" + labels + "2\n" +
		"failures_total" + labels + "6\n" +
		"open_connections" + labels + "1\n" +
		"received_bytes_total" + labels + "3\n" +
		"refused_total{reason=\"connections\"} 8\n" +
		"refused_total{reason=\"flows\"} 9\n" +
		"retries_total" + labels + "5\n" +
		"sent_bytes_total" + labels + "4\n" +
		"unreported_refusals_total{} 10"
	if got := metricstest.Values(t, metricstest.Registry(newCollector(counts, stats)), "sluice_userspace_"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Each port of a Service has its series, until the Service is deleted.
func TestMetrics(t *testing.T) {
	r := newRig(t, Options{})
	stats := func() relay.Stats { return relay.Stats{Refused: map[string]int64{"connections": 3}} }
	var c prometheus.Collector = newCollector(r.sockets.counts, stats)
	r.ok(r.load(service("a", tcp(80, backend), tcp(81, backend))))
	registry := metricstest.Registry(c)
	golden(t, "metrics.txt", metricstest.Shape(metricstest.Gather(t, registry)))
	if got := metricstest.Values(t, registry, "sluice_userspace_"); got != `refused_total{reason="connections"} 3` {
		t.Errorf("the values are %s", got)
	}
	r.ok(r.set(service("a")))
	if got := metricstest.Gather(t, registry); len(got) != 2 {
		t.Errorf("without a Service there are %v", got)
	}
}
