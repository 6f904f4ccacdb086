//go:build linux

package conformance

import (
	"fmt"
	"slices"
)

// changes is section 7.L: dynamic changes and lifecycle.
func changes() []scenario {
	return slices.Concat(addedAndDeleted(), portChanges(), typeChanges(), endpointChanges(), manyChanges())
}

// addedAndDeleted are Services and endpoints that are added and deleted.
func addedAndDeleted() []scenario {
	web := service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`)
	pods := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	both := []string{"10.180.0.1:8080", "10.180.1.1:8080"}
	other := []string{
		service("other", `clusterIP: 172.30.0.42, ports: [{port: 80}]`),
		slice("other", "8080", "10.180.0.3 A"),
	}
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{217}, summary: "a Service refuses until it has endpoints",
			cluster: []string{web},
			steps:   []step{refused(client, vip), apply(pods), reach(client, vip, original, both...)},
		},
		{
			covers: []int{218}, summary: "endpoints may exist before their Service",
			cluster: []string{pods},
			steps:   []step{unallocated(client, vip), apply(web), reach(client, vip, original, both...)},
		},
		{
			covers:  []int{219, 220},
			summary: "a deleted Service is removed without affecting others, and works when created again",
			cluster: append([]string{web, pods}, other...),
			steps: []step{
				uninterrupted(client, "172.30.0.42:80",
					remove("Service/web"),
					unallocated(client, vip), unallocated("node", vip),
					apply(web),
					reach(client, vip, original, both...),
					remove("Service/web", "EndpointSlice/web"),
					unallocated(client, vip),
					apply(web, pods),
					reach(client, vip, original, both...),
				),
			},
		},
		{
			covers: []int{221}, summary: "a Service created again with another ClusterIP has only the new one",
			cluster: []string{web, pods},
			steps: []step{
				remove("Service/web"),
				apply(service("web", `clusterIP: 172.30.0.43, ports: [{port: 80}]`)),
				unallocated(client, vip),
				reach(client, "172.30.0.43:80", original, both...),
			},
		},
		{
			covers: []int{225}, summary: "a Service scaled from zero to three and back refuses, balances, refuses",
			cluster: []string{web, slice("web", "8080")},
			steps: []step{times(2,
				refused(client, vip),
				apply(slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B", "10.180.1.3 B")),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.1:8080", "10.180.1.3:8080"),
				apply(slice("web", "8080")),
			)},
		},
		{
			covers: []int{226}, summary: "one Service is deleted and one added without interrupting others",
			cluster: append([]string{
				web, pods,
				service("third", `clusterIP: 172.30.0.44, ports: [{port: 80}]`), slice("third", "8080", "10.180.1.4 B"),
			}, other...),
			steps: []step{
				uninterrupted(client, vip, uninterrupted(client, "172.30.0.42:80",
					remove("Service/third", "EndpointSlice/third"),
					apply(service("fourth", `clusterIP: 172.30.0.45, ports: [{port: 80}]`), slice("fourth", "8080", "10.180.0.5 A")),
					reach(client, "172.30.0.45:80", original, "10.180.0.5:8080"),
					unallocated(client, "172.30.0.44:80"),
				)),
			},
		},
	}
}

// portChanges are ports that are added, deleted and renamed.
func portChanges() []scenario {
	const fields = `clusterIP: 172.30.0.41, ports: `
	one := []string{service("web", fields+`[{name: a, port: 80}]`), slice("web", "a:8080", "10.180.0.1 A")}
	two := []string{
		service("web", fields+`[{name: a, port: 80}, {name: b, port: 81}]`), slice("web", "a:8080 b:8081", "10.180.0.1 A"),
	}
	renamed := []string{service("web", fields+`[{name: c, port: 80}]`), slice("web", "c:8080", "10.180.0.1 A")}
	const client, vip, second = "10.180.0.2", "172.30.0.41:80", "172.30.0.41:81"
	return []scenario{
		{
			covers: []int{222, 223}, summary: "adding and removing a port does not interrupt another",
			cluster: one,
			steps: []step{
				open("kept", client, vip, "10.180.0.1:8080"),
				uninterrupted(client, vip,
					unknownPort(client, second),
					apply(two...),
					reach(client, second, original, "10.180.0.1:8081"),
					apply(one...),
					unknownPort(client, second),
				),
				send("kept"),
			},
		},
		{
			covers: []int{224}, summary: "a port is renamed in the Service, then in its slices",
			cluster: one,
			steps: []step{
				apply(renamed[0]),
				refused(client, vip),
				apply(renamed[1]),
				reach(client, vip, original, "10.180.0.1:8080"),
			},
		},
		{
			covers: []int{224}, summary: "a port is renamed in the slices, then in the Service",
			cluster: one,
			steps: []step{
				apply(renamed[1]),
				refused(client, vip),
				apply(renamed[0]),
				reach(client, vip, original, "10.180.0.1:8080"),
			},
		},
		{
			covers: []int{224}, summary: "a port is renamed while slices with both names exist",
			cluster: one,
			steps: []step{
				uninterrupted(client, vip,
					apply(slice("web/c", "c:8080", "10.180.0.1 A")),
					reach(client, vip, original, "10.180.0.1:8080"),
					apply(renamed[0]),
					reach(client, vip, original, "10.180.0.1:8080"),
					remove("EndpointSlice/web"),
				),
				reach(client, vip, original, "10.180.0.1:8080"),
			},
		},
	}
}

// typeChanges are Services whose type changes.
func typeChanges() []scenario {
	const ports = `ports: [{port: 80}]`
	external := service("web", `type: ExternalName, externalName: example.com`)
	clusterIP := service("web", `clusterIP: 172.30.0.41, `+ports)
	nodePort := service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 32000}]`)
	pods := slice("web", "8080", "10.180.0.1 A")
	const client, vip, node, pod = "10.180.0.2", "172.30.0.41:80", "192.168.0.2:32000", "10.180.0.1:8080"
	return []scenario{
		{
			covers: []int{227, 228}, summary: "an ExternalName becomes a ClusterIP and an ExternalName again",
			cluster: []string{external, pods},
			steps: []step{
				unallocated(client, vip),
				apply(clusterIP),
				reach(client, vip, original, pod),
				apply(external),
				unallocated(client, vip),
			},
		},
		{
			covers: []int{229}, summary: "an ExternalName becomes a NodePort and an ExternalName again",
			cluster: []string{external, pods},
			steps: []step{
				untouched("outside", node),
				apply(nodePort),
				reach("outside", node, masqueraded, pod),
				reach(client, vip, original, pod),
				apply(external),
				untouched("outside", node),
				unallocated(client, vip),
			},
		},
		throughAllTypes("tcp", "TCP"),
		throughAllTypes("udp", "UDP"),
	}
}

// throughAllTypes is a Service that has each type in turn, with other ports each time, and must be reachable only as
// that type. Old UDP entries are deleted with a delay, and new flows may have the same ports.
func throughAllTypes(protocol, name string) scenario {
	port := func(fields string) string { return fmt.Sprintf("ports: [{protocol: %s, %s}]", name, fields) }
	at := func(addr string) string { return addr + "/" + protocol }
	const client, pod = "10.180.0.2", "10.180.0.1:8080"
	return scenario{
		covers: []int{230}, summary: "a Service changes through all types and several ports over " + name,
		cluster: []string{
			service("web", `clusterIP: 172.30.0.41, `+port("port: 80")),
			slice("web", at("8080"), "10.180.0.1 A"),
		},
		steps: []step{
			reach(client, at("172.30.0.41:80"), original, pod),
			untouched("outside", at("192.168.0.2:32000")),
			apply(service("web", `type: NodePort, clusterIP: 172.30.0.41, `+port("port: 81, nodePort: 32000"))),
			reach(client, at("172.30.0.41:81"), original, pod),
			reach("outside", at("192.168.0.2:32000"), masqueraded, pod),
			soon(unknownPort(client, at("172.30.0.41:80"))),
			untouched(client, at("192.168.99.1:82")),
			apply(loadBalancer("web", `clusterIP: 172.30.0.41, `+port("port: 82, nodePort: 32001"), "192.168.99.1")),
			reach(client, at("172.30.0.41:82"), original, pod),
			reach("outside", at("192.168.99.1:82"), masqueraded, pod),
			reach("outside", at("192.168.0.2:32001"), masqueraded, pod),
			soon(untouched("outside", at("192.168.0.2:32000"))),
			soon(unknownPort(client, at("172.30.0.41:81"))),
			apply(service("web", `clusterIP: 172.30.0.41, `+port("port: 83"))),
			reach(client, at("172.30.0.41:83"), original, pod),
			soon(unknownPort(client, at("172.30.0.41:82"))),
			soon(untouched("outside", at("192.168.0.2:32001"))),
			untouched(client, at("192.168.99.1:82")),
		},
	}
}

// endpointChanges are endpoints that move to another slice or address.
func endpointChanges() []scenario {
	web := service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`)
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{231}, summary: "an endpoint moves to another slice and is in both temporarily",
			cluster: []string{web, slice("web/x", "8080", "10.180.0.1 A"), slice("web/y", "8080", "10.180.1.1 B")},
			steps: []step{
				uninterrupted(client, vip,
					apply(slice("web/y", "8080", "10.180.0.1 A", "10.180.1.1 B")),
					evenly(300, client, vip, "10.180.0.1:8080", "10.180.1.1:8080"),
					apply(slice("web/x", "8080")),
					evenly(300, client, vip, "10.180.0.1:8080", "10.180.1.1:8080"),
					remove("EndpointSlice/web-x"),
				),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.1:8080"),
			},
		},
		{
			covers: []int{231}, summary: "an endpoint moves to another slice and is in none temporarily",
			cluster: []string{web, slice("web/x", "8080", "10.180.0.1 A"), slice("web/y", "8080", "10.180.1.1 B")},
			steps: []step{
				uninterrupted(client, vip,
					apply(slice("web/x", "8080")),
					reach(client, vip, original, "10.180.1.1:8080"),
					apply(slice("web/y", "8080", "10.180.0.1 A", "10.180.1.1 B")),
				),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.1:8080"),
			},
		},
		{
			covers: []int{232}, summary: "a pod is recreated with another address, and the old one is not used",
			cluster: []string{web, slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")},
			steps: []step{
				apply(slice("web", "8080", "10.180.0.1 A")),
				reach(client, vip, original, "10.180.0.1:8080"),
				apply(slice("web", "8080", "10.180.0.1 A", "10.180.1.3 B")),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.3:8080"),
				apply(slice("web", "8080", "10.180.0.1 A", "10.180.1.4 B")),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.4:8080"),
			},
		},
	}
}

// manyChanges are many changes in a short time.
func manyChanges() []scenario {
	web := []string{
		service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
		slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B"),
	}
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{233}, summary: "updates during a write are combined into one write, with the last state",
			cluster: web,
			steps: []step{
				whileWriting(1, thousandUpdates),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.0.3:8080"),
			},
		},
		{
			covers: []int{234}, summary: "an update reverted before it is written causes no write",
			cluster: web,
			steps: []step{
				whileWriting(0, sequence(
					changeNoWait(service("web", `clusterIP: 172.30.0.41, ports: [{port: 81}]`), slice("web", "8080", "10.180.0.3 A")),
					changeNoWait(web...),
				)),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.1:8080"),
			},
		},
		{
			covers: []int{235}, summary: "connections survive a hundred replacements of endpoints, including their own",
			cluster: web,
			steps:   []step{uninterrupted(client, vip, manyConnections(20, hundredReplacements))},
		},
	}
}

// thousandUpdates writes a thousand versions of a slice as fast as possible.
func thousandUpdates(e *env) error {
	for i := range 1000 {
		endpoint := fmt.Sprintf("10.180.0.%d A", 3+(999-i)%4)
		if err := e.change(e.texts([]string{slice("web", "8080", "10.180.0.1 A", endpoint)}), nil); err != nil {
			return err
		}
	}
	return nil
}

// hundredReplacements replaces one endpoint after another.
func hundredReplacements(e *env) error {
	for i := range 100 {
		a, b := fmt.Sprintf("10.180.0.%d A", 3+i%4), fmt.Sprintf("10.180.1.%d B", 1+(i+1)/2%3)
		if err := apply(slice("web", "8080", a, b))(e); err != nil {
			return err
		}
	}
	return nil
}

// manyConnections opens n connections, makes the change twice, and sends on all connections
// before, in between and after.
func manyConnections(n int, change step) step {
	return func(e *env) error {
		var opens, sends []step
		for i := range n {
			name := fmt.Sprint(i)
			opens = append(opens, open(name, "10.180.0.2", "172.30.0.41:80"), send(name))
			sends = append(sends, send(name))
		}
		return sequence(sequence(opens...), change, sequence(sends...), change, beyondTimers, sequence(sends...))(e)
	}
}
