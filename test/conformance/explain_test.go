//go:build linux

package conformance

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The kernel has no rules here and the observations are invented: checkExplain only
// compares them with the answers of explain.
func TestCheckExplain(t *testing.T) {
	e := scenario{
		cluster: append(aNodePort(`{port: 80, nodePort: 3001}`),
			service("sticky", `clusterIP: 172.30.0.42, ports: [{port: 80}], `+clientIP), slice("sticky", "80", "10.180.0.1 A")),
		lab: lab.Options{Timeout: lab.Soon},
	}.setUp(t, inertPlane(), translator{})
	here, there := netip.MustParseAddrPort("10.180.0.1:80"), netip.MustParseAddrPort("10.180.1.1:80")
	both := []netip.AddrPort{here, there}
	answered := func(by netip.AddrPort, client, seen string) []lab.Result {
		return []lab.Result{{
			Outcome: lab.Answered, Backend: by,
			Local: netip.MustParseAddrPort(client + ":1"), Source: netip.MustParseAddrPort(seen + ":1"),
		}}
	}
	const pod, vip, sticky = "10.180.0.2", "172.30.0.41:80", "172.30.0.42:80"
	for _, tt := range []struct {
		name, from, to string
		got            observation
		want           string // in the error; empty: no error
	}{
		{"everything as explained", pod, vip, observation{explain.Balanced, both, answered(here, pod, pod), false, false}, ""},
		{"another verdict", pod, vip, observation{verdict: explain.Dropped}, "connections are dropped"},
		{"a backend missing", pod, vip, observation{verdict: explain.Balanced, backends: both[:1]}, "the backends are [10.180.0.1:80]"},
		{"not masqueraded", "outside", vip, observation{explain.Balanced, both, answered(here, "203.0.113.2", "203.0.113.2"), false, false}, "a connection is answered"},
		{"masqueraded", "outside", vip, observation{explain.Balanced, both, answered(here, "203.0.113.2", "192.168.0.2"), false, false}, ""},
		{"masqueraded without need", pod, vip, observation{explain.Balanced, both, answered(here, pod, "192.168.0.2"), false, false}, "a connection is answered"},
		{"hairpin", "10.180.0.1", vip, observation{explain.Balanced, both, answered(here, "10.180.0.1", "192.168.0.2"), false, false}, ""},
		{"not hairpin", "10.180.0.1", vip, observation{explain.Balanced, both, answered(there, "10.180.0.1", "192.168.0.2"), false, false}, "a connection is answered"},
		{"an unknown backend", pod, vip, observation{verdict: explain.Balanced, results: answered(netip.MustParseAddrPort("10.180.0.7:80"), pod, pod)}, "a connection is answered"},
		{"another address of the node", "node", vip, observation{verdict: explain.Balanced, results: answered(here, "192.168.1.2", "192.168.0.2")}, "the client is 192.168.1.2"},
		{"sticky", pod, sticky, observation{verdict: explain.Balanced, sticky: true}, ""},
		{"not sticky", pod, vip, observation{verdict: explain.Balanced, sticky: true}, "the client stays with its backend"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, probe, err := e.probe(tt.from, tt.to)
			if err != nil {
				t.Fatal(err)
			}
			err = e.checkExplain(client, probe, tt.got)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	e.proxy.stop()
	client, probe, err := e.probe(pod, vip)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.checkExplain(client, probe, observation{verdict: explain.Dropped}); err == nil {
		t.Error("the last routes were not compared after the proxy stopped")
	}
}
