//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/slots"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The backends of the Service "web" of weights and leastConnections.
const firstBackend, secondBackend = "10.180.0.1:8080", "10.180.1.1:8080"

// weights are what kube-proxy has in mode ipvs only: schedulers and weights of backends.
func weights() []scenario {
	const here, there = firstBackend, secondBackend
	both := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	hereOnly, thereOnly := slice("web/1", "8080", "10.180.0.1 A"), slice("web/2", "8080", "10.180.1.1 B")
	return []scenario{
		{
			covers: []int{313}, summary: "backends get connections by the weights of their nodes, and none with weight 0",
			cluster: []string{annotatedWeb(`sluice-proxy.github.io/weights: "node-a=3"`), both},
			steps: []step{
				fromAll(shared),
				apply(annotatedWeb(`sluice-proxy.github.io/weights: "node-a=0"`)),
				fromAll(func(from, to string, seen source) step { return reach(from, to, seen, there) }),
				apply(annotatedWeb("")),
				fromAll(shared),
			},
		},
		{
			covers: []int{314}, summary: "with a scheduler by hash a client reaches the same backend each time",
			cluster: []string{annotatedWeb("sluice-proxy.github.io/scheduler: maglev"), both},
			steps: []step{
				when(hasSchedulers, sequence(
					sticky("10.180.0.9", "172.30.0.41:80", here, there),
					sticky("node", "172.30.0.41:80", here, there),
					sticky("outside", "192.168.0.2:3001", here, there),
				)).otherwise(fromAll(shared)),
			},
		},
		{
			covers: []int{315}, summary: "the address of a client has the same backend in every plane with tables of hashes",
			cluster: []string{
				`{kind: Service, metadata: {name: web, annotations: {sluice-proxy.github.io/scheduler: maglev}}, ` +
					`spec: {type: NodePort, clusterIP: 172.30.0.41, ports: [{name: a, port: 80, nodePort: 3001}, ` +
					`{name: b, port: 53, protocol: UDP, nodePort: 3002}]}}`,
				slice("web", "a:8080 b:53/udp", "10.180.0.1 A", "10.180.0.2 A", "10.180.0.3 A", "10.180.1.1 B", "10.180.1.2 B"),
			},
			steps: []step{
				when(hasTables, sequence(
					hashed("10.180.0.8", "172.30.0.41:80"), hashed("10.180.0.9", "172.30.0.41:80"),
					hashed("10.180.0.10", "172.30.0.41:80"), hashed("10.180.0.10", "172.30.0.41:53/udp"),
					hashed("node", "172.30.0.41:80"), hashed("node", "172.30.0.41:53/udp"), hashed("node", "192.168.0.2:3001"),
					hashed("outside", "192.168.0.2:3001"), hashed("outside", "192.168.0.2:3002/udp"),
				)).otherwise(),
			},
		},
		{
			covers:  []int{330},
			summary: "a slice has the weight of Cilium's annotation, and with weight 0 its connections drain",
			cluster: []string{annotatedWeb(""), weighing("3", hereOnly), weighing("0", thereOnly)},
			steps: []step{
				fromAll(func(from, to string, seen source) step { return reach(from, to, seen, here) }),
				open("kept", "10.180.0.9", "172.30.0.41:80", here),
				apply(weighing("3", hereOnly), weighing("1", thereOnly)),
				fromAll(shared),
				apply(weighing("0", hereOnly), thereOnly),
				fromAll(func(from, to string, seen source) step { return reach(from, to, seen, there) }),
				send("kept", here),
			},
		},
		{
			covers:  []int{331},
			summary: "with session affinity, too, no client gets a backend of weight 0 that it did not have",
			cluster: []string{
				strings.Replace(annotatedWeb(`sluice-proxy.github.io/weights: "node-a=0"`),
					"spec: {", "spec: {sessionAffinity: ClientIP, ", 1),
				both,
			},
			steps: []step{fromAll(func(from, to string, seen source) step { return reach(from, to, seen, there) })},
		},
	}
}

// annotatedWeb returns a Service with annotations.
func annotatedWeb(annotations string) string {
	return fmt.Sprintf("{kind: Service, metadata: {name: web, annotations: {%s}}, spec: {type: NodePort, "+
		"clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}]}}", annotations)
}

// fromAll connects to it from a pod, from the node and from outside.
func fromAll(try func(from, to string, seen source) step) step {
	return sequence(try("10.180.0.9", "172.30.0.41:80", original), try("node", "172.30.0.41:80", anySource),
		try("outside", "192.168.0.2:3001", masqueraded))
}

// shared verifies that its two backends share the connections as explain says.
func shared(from, to string, seen source) step {
	return share(from, to, seen, firstBackend, secondBackend)
}

// weighing returns a slice with the weight of Cilium's annotation.
func weighing(weight, slice string) string {
	return strings.Replace(slice, "metadata: {", "metadata: {annotations: {service.cilium.io/weight: '"+weight+"'}, ", 1)
}

// share verifies that connections are answered by the backends in the shares that explain knows.
func share(from, to string, seen source, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		return e.balance(balance{from: from, to: to, seen: seen, want: want, n: 200})
	}
}

// hashed verifies that connections of a client reach the backend that package slots has for its address, among the
// five of S-315.
func hashed(from, to string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		port := map[lab.Protocol]string{lab.TCP: ":8080", lab.UDP: ":53"}[probe.Protocol]
		all, err := e.backends([]string{
			"10.180.0.1" + port, "10.180.0.2" + port, "10.180.0.3" + port, "10.180.1.1" + port, "10.180.1.2" + port,
		})
		if err != nil {
			return err
		}
		table := slots.Maglev(all, func(netip.AddrPort) uint16 { return 1 })
		want := table[slots.Of(client.Addr(probe.To.Addr()), len(table))]
		got := observation{verdict: explain.Balanced, sticky: true}
		for range 3 {
			r := client.Try(probe)
			if r.Outcome != lab.Answered || r.Backend != want {
				return fmt.Errorf("%s to %s: %s, want an answer of %s", from, to, r, want)
			}
			got.results = append(got.results, r)
		}
		got.backends = []netip.AddrPort{want}
		return e.checkExplain(client, probe, got)
	}
}
