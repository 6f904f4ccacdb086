//go:build linux

package conformance

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The kernel has no rules here and the observations are invented: checkExplain only
// compares them with the answers of explain.
func TestCheckExplain(t *testing.T) {
	e := scenario{
		cluster: append(aNodePort(`{port: 80, nodePort: 3001}`),
			service("sticky", `clusterIP: 172.30.0.42, ports: [{port: 80}], `+clientIP), slice("sticky", "80", "10.180.0.1 A")),
		lab: lab.Options{Timeout: lab.Soon},
	}.setUpAlone(t, inertPlane())
	here, there := netip.MustParseAddrPort("10.180.0.1:80"), netip.MustParseAddrPort("10.180.1.1:80")
	both := []netip.AddrPort{here, there}
	answered := func(by netip.AddrPort, client, seen string) []lab.Result {
		return []lab.Result{{
			Outcome: lab.Answered, Backend: by,
			Local: netip.MustParseAddrPort(client + ":1"), Source: netip.MustParseAddrPort(seen + ":1"),
		}}
	}
	hits := func(one, two int) map[netip.AddrPort]int { return map[netip.AddrPort]int{here: one, there: two} }
	const pod, vip, sticky = "10.180.0.2", "172.30.0.41:80", "172.30.0.42:80"
	for _, tt := range []struct {
		name, from, to string
		got            observation
		want           string // in the error; empty: no error
	}{
		{
			"everything as explained", pod, vip,
			observation{verdict: explain.Balanced, results: answered(here, pod, pod), backends: both},
			"",
		},
		{"another verdict", pod, vip, observation{verdict: explain.Dropped}, "connections are dropped"},
		{
			"a backend missing", pod, vip,
			observation{verdict: explain.Balanced, backends: both[:1]},
			"the backends are [10.180.0.1:80]",
		},
		{"not masqueraded", "outside", vip, observation{
			verdict: explain.Balanced,
			results: answered(here, "203.0.113.2", "203.0.113.2"), backends: both,
		}, "a connection is answered"},
		{
			"masqueraded", "outside", vip,
			observation{verdict: explain.Balanced, results: answered(here, "203.0.113.2", "192.168.0.2"), backends: both},
			"",
		},
		{"masqueraded without need", pod, vip, observation{
			verdict: explain.Balanced,
			results: answered(here, pod, "192.168.0.2"), backends: both,
		}, "a connection is answered"},
		{"hairpin", "10.180.0.1", vip, observation{
			verdict: explain.Balanced,
			results: answered(here, "10.180.0.1", "192.168.0.2"), backends: both,
		}, ""},
		{"not hairpin", "10.180.0.1", vip, observation{
			verdict: explain.Balanced,
			results: answered(there, "10.180.0.1", "192.168.0.2"), backends: both,
		}, "a connection is answered"},
		{"an unknown backend", pod, vip, observation{
			verdict: explain.Balanced,
			results: answered(netip.MustParseAddrPort("10.180.0.7:80"), pod, pod),
		}, "a connection is answered"},
		{
			"another address of the node", "node", vip,
			observation{verdict: explain.Balanced, results: answered(here, "192.168.1.2", "192.168.0.2")},
			"the client is 192.168.1.2",
		},
		{"as often as the chance is", pod, vip, observation{verdict: explain.Balanced, hits: hits(180, 220), n: 400}, ""},
		{
			"more often than the chance is", pod, vip,
			observation{verdict: explain.Balanced, hits: hits(40, 360), n: 400},
			"40 of 400 connections reached 10.180.0.1:80; with the chance 1/2 they are 136 to 264",
		},
		{
			"sticky, and one backend has all", pod, sticky,
			observation{verdict: explain.Balanced, hits: hits(40, 0), n: 40, sticky: true},
			"",
		},
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
	// A plane that knows better than the weights is believed.
	e.proxy.shares = func(plane.Connection) plane.Shares {
		return plane.Shares{Of: map[netip.AddrPort]float64{here: 0.1, there: 0.9}}
	}
	client, probe, err := e.probe(pod, vip)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.checkExplain(client, probe,
		observation{verdict: explain.Balanced, hits: hits(40, 360), n: 400}); err != nil {
		t.Error(err)
	}
	half := observation{verdict: explain.Balanced, hits: hits(200, 200), n: 400}
	err = e.checkExplain(client, probe, half)
	if err == nil || !strings.Contains(err.Error(), "the chance 10.0% they are") {
		t.Errorf("half of the connections, with a chance of a tenth: %v", err)
	}
	e.proxy.stop()
	if err := e.checkExplain(client, probe, observation{verdict: explain.Dropped}); err == nil {
		t.Error("the last routes were not compared after the proxy stopped")
	}
}
