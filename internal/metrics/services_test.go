package metrics

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// node is a compiler whose changes the metrics follow.
type node struct {
	t        *testing.T
	store    *cluster.Store
	compiler *route.Compiler
	metrics  *Metrics
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		t: t, store: cluster.NewStore(), metrics: newMetrics(modeNFTables),
		compiler: route.NewCompiler(route.Options{NodeName: "here"}),
	}
	n.store.SetNode(&cluster.Node{Name: "here"})
	return n
}

// service puts a dual-stack Service of type NodePort with the ports 80 and 81.
func (n *node) service(id byte, tune func(*cluster.Service)) {
	svc := &cluster.Service{
		Name: name(id), Type: cluster.NodePort,
		ClusterIPs: []netip.Addr{addr(route.IPv4, id), addr(route.IPv6, id)},
		Ports: []cluster.ServicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 80, NodePort: 30000 + uint16(id)},
			{Name: "b", Protocol: cluster.TCP, Port: 81, NodePort: 31000 + uint16(id)},
		},
	}
	if tune != nil {
		tune(svc)
	}
	n.store.SetService(svc)
}

func name(id byte) cluster.Name {
	return cluster.Name{Namespace: "default", Name: fmt.Sprintf("s%d", id)}
}

// endpoints puts the endpoints of a Service on a node, the same for both ports.
func (n *node) endpoints(id byte, on string, ends ...byte) {
	sl := &cluster.Slice{
		Name: name(id), Service: name(id),
		Ports: []cluster.SlicePort{{Name: "a", Protocol: cluster.TCP, Port: 8080}, {Name: "b", Protocol: cluster.TCP, Port: 8080}},
	}
	for _, e := range ends {
		sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{Addr: addr(route.IPv4, e), Node: on, Ready: true, Serving: true})
	}
	n.store.SetSlice(sl)
}

// counts brings the metrics up to date and compares what they say.
func (n *node) counts(want string) {
	n.t.Helper()
	change, _ := n.compiler.Compile(n.store.Take())
	n.metrics.Applied(change)
	var got []string
	for line := range strings.Lines(values(n.t, n.metrics, "kubeproxy_sync_proxy_rules_no_local_") + "\n" + values(n.t, n.metrics, "sluice_")) {
		if strings.HasPrefix(line, "endpoints") || strings.HasPrefix(line, "services") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	compare(n.t, strings.Join(got, "\n"), want)
}

// Services are counted as they come and go, and backends once for each Service.
func TestServicesAndEndpoints(t *testing.T) {
	n := newNode(t)
	n.counts("")
	n.service(1, nil)
	n.counts("services{} 1")
	n.endpoints(1, "here", 11, 12, 13)
	n.counts("endpoints{} 3\nservices{} 1")
	n.service(2, nil)
	n.endpoints(2, "there", 13, 14)
	n.service(3, func(s *cluster.Service) { s.Ignored = "externalName" })
	n.counts("endpoints{} 5\nservices{} 2")
	n.endpoints(1, "here", 11)
	n.counts("endpoints{} 3\nservices{} 2")
	n.counts("endpoints{} 3\nservices{} 2")
	n.store.DeleteService(name(1))
	n.counts("endpoints{} 2\nservices{} 1")
	n.store.DeleteService(name(2))
	n.counts("")
}

// A port counts for each policy that keeps it from the endpoints elsewhere; one
// without any endpoints does not.
func TestNoLocalEndpoints(t *testing.T) {
	n := newNode(t)
	n.service(1, func(s *cluster.Service) { s.InternalLocal = true })
	n.counts("services{} 1")
	n.endpoints(1, "there", 11)
	n.counts(`
endpoints_total{ip_family="IPv4", traffic_policy="internal"} 2
endpoints{} 1
services{} 1`)
	n.service(1, func(s *cluster.Service) { s.InternalLocal, s.ExternalLocal = true, true })
	n.counts(`
endpoints_total{ip_family="IPv4", traffic_policy="external"} 2
endpoints_total{ip_family="IPv4", traffic_policy="internal"} 2
endpoints{} 1
services{} 1`)
	n.endpoints(1, "here", 11)
	n.counts("endpoints{} 1\nservices{} 1")
}
