//go:build linux

package conformance

import (
	"fmt"
	"strings"
)

// weights are what kube-proxy has in mode ipvs only: schedulers and weights of backends.
func weights() []scenario {
	const here, there = "10.180.0.1:8080", "10.180.1.1:8080"
	web := func(annotations string) string {
		return fmt.Sprintf("{kind: Service, metadata: {name: web, annotations: {%s}}, spec: {type: NodePort, "+
			"clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}]}}", annotations)
	}
	both := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	hereOnly, thereOnly := slice("web/1", "8080", "10.180.0.1 A"), slice("web/2", "8080", "10.180.1.1 B")
	clients := func(try func(from, to string, seen source) step) step {
		return sequence(try("10.180.0.9", "172.30.0.41:80", original), try("node", "172.30.0.41:80", anySource),
			try("outside", "192.168.0.2:3001", masqueraded))
	}
	shared := func(from, to string, seen source) step { return share(from, to, seen, here, there) }
	return []scenario{
		{
			covers: []int{313}, summary: "backends get connections by the weights of their nodes, and none with weight 0",
			cluster: []string{web(`sluice-proxy.github.io/weights: "node-a=3"`), both},
			steps: []step{
				clients(shared),
				apply(web(`sluice-proxy.github.io/weights: "node-a=0"`)),
				clients(func(from, to string, seen source) step { return reach(from, to, seen, there) }),
				apply(web("")),
				clients(shared),
			},
		},
		{
			covers: []int{314}, summary: "with a scheduler by hash a client reaches the same backend each time",
			cluster: []string{web("sluice-proxy.github.io/scheduler: maglev"), both},
			steps: []step{
				when(hashesClients, sequence(
					sticky("10.180.0.9", "172.30.0.41:80", here, there),
					sticky("node", "172.30.0.41:80", here, there),
					sticky("outside", "192.168.0.2:3001", here, there),
				)).otherwise(clients(shared)),
			},
		},
		{
			covers:  []int{330},
			summary: "a slice has the weight of Cilium's annotation, and with weight 0 its connections drain",
			cluster: []string{web(""), weighing("3", hereOnly), weighing("0", thereOnly)},
			steps: []step{
				clients(func(from, to string, seen source) step { return reach(from, to, seen, here) }),
				open("kept", "10.180.0.9", "172.30.0.41:80", here),
				apply(weighing("3", hereOnly), weighing("1", thereOnly)),
				clients(shared),
				apply(weighing("0", hereOnly), thereOnly),
				clients(func(from, to string, seen source) step { return reach(from, to, seen, there) }),
				send("kept", here),
			},
		},
		{
			covers:  []int{331},
			summary: "with session affinity, too, no client gets a backend of weight 0 that it did not have",
			cluster: []string{
				strings.Replace(web(`sluice-proxy.github.io/weights: "node-a=0"`),
					"spec: {", "spec: {sessionAffinity: ClientIP, ", 1),
				both,
			},
			steps: []step{clients(func(from, to string, seen source) step { return reach(from, to, seen, there) })},
		},
	}
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
