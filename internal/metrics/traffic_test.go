package metrics

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// The busiest ports have series, all others together have those of service "other". Signals that are not known have
// none, and no label has the address of a client.
func TestTrafficOfServices(t *testing.T) {
	port := func(name, port string) route.PortID {
		return route.PortID{Service: cluster.Name{Namespace: "default", Name: name}, Name: port, Protocol: cluster.TCP}
	}
	m := newMetrics()
	m.Read(func() Readings {
		return Readings{Traffic: Traffic{
			Counted: []traffic.Series{
				{Port: port("api", ""), Number: 8080, Counters: plane.Traffic{plane.Connections: 7}},
				{Port: port("web", "http"), Number: 80, Counters: plane.Traffic{plane.Connections: 9, plane.Refusals: 2}},
				{Counters: plane.Traffic{plane.Connections: 100, plane.Refusals: 1}},
			},
			Listing: &traffic.Listing{
				Entries: 100,
				Ports: map[route.PortID]traffic.PortFlows{
					port("web", "http"): {Flows: traffic.Flows{Entries: 30, Live: 20}},
					port("web", "dns"):  {Flows: traffic.Flows{Entries: 5, Live: 3}},
					port("idle", ""):    {Flows: traffic.Flows{Entries: 4, Live: 4}},
				},
				Clients: []traffic.Client{{Addr: netip.MustParseAddr("203.0.113.9"), Entries: 40}},
			},
		}}
	})
	compare(t, values(t, m, "sluice_service_"), `
connections_total{namespace="", port="", protocol="", service="other"} 100
connections_total{namespace="default", port="8080", protocol="tcp", service="api"} 7
connections_total{namespace="default", port="http", protocol="tcp", service="web"} 9
live_connections{namespace="", port="", protocol="", service="other"} 7
live_connections{namespace="default", port="http", protocol="tcp", service="web"} 20
refused_total{namespace="", port="", protocol="", service="other"} 1
refused_total{namespace="default", port="http", protocol="tcp", service="web"} 2`)
	compare(t, values(t, m, "sluice_conntrack_"), `
client_share{} 0.4
service_share{} 0.35`)
}
