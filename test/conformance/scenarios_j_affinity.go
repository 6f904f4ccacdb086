//go:build linux

package conformance

import (
	"slices"
	"time"
)

// clientIP are the fields of a Service with session affinity.
const clientIP = `sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}`

// affinities is section 7.J: session affinity ClientIP.
func affinities() []scenario {
	return slices.Concat(affinityClients(), affinityShared(), affinityChanges())
}

// affinityClients are clients of every kind of address.
func affinityClients() []scenario {
	both := []string{"10.180.0.1:8080", "10.180.1.1:8080"}
	pods := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	sticky := service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}], `+clientIP)
	return []scenario{
		{
			covers: []int{181, 196}, summary: "a client keeps its backend while other Services change",
			cluster: []string{sticky, pods},
			steps: []step{
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", both...),
				apply(
					service("other", `clusterIP: 172.30.0.42, ports: [{port: 80}], `+clientIP),
					slice("other", "8080", "10.180.0.3 A"),
				),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", both...),
				apply(slice("other", "8080", "10.180.0.4 A")),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", both...),
				remove("Service/other"),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", both...),
			},
		},
		{
			covers: []int{182}, summary: "a client of a NodePort keeps its backend",
			cluster: []string{
				service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 32000}], `+clientIP), pods,
			},
			steps: []step{
				keepsBackend("outside", "outside", "192.168.0.2:32000", both...),
				keepsBackend("pod", "10.180.0.2", "192.168.0.2:32000", both...),
				keepsBackend("outside", "outside", "192.168.0.2:32000", both...),
			},
		},
		{
			covers: []int{183}, summary: "a client of a VIP keeps its backend under either policy",
			cluster: []string{
				loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80}], `+clientIP, "192.168.99.1"),
				pods,
				loadBalancer("local", `clusterIP: 172.30.0.42, externalTrafficPolicy: Local, ports: [{port: 80}], `+clientIP,
					"192.168.99.2"),
				slice("local", "8080", "10.180.0.3 A", "10.180.0.4 A", "10.180.1.3 B"),
			},
			steps: []step{
				keepsBackend("everywhere", "outside", "192.168.99.1:80", both...),
				keepsBackend("here", "outside", "192.168.99.2:80", "10.180.0.3:8080", "10.180.0.4:8080"),
			},
		},
		{
			covers: []int{184, 192}, summary: "each client and each port of a Service has independent affinity",
			cluster: manyPorts(10800, "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				firstChoice("one", "10.180.0.2"),
				firstChoice("other", "10.180.0.3"),
				choseIndependently("one", "other"),
				times(3, choose("one", "10.180.0.2", same), choose("other", "10.180.0.3", same)),
			},
		},
	}
}

// affinityShared is affinity across the addresses of a Service, and across restarts.
func affinityShared() []scenario {
	four := []string{"10.180.0.1:8080", "10.180.0.3:8080", "10.180.1.1:8080", "10.180.1.3:8080"}
	return []scenario{
		{
			covers: []int{191}, summary: "all addresses of a port share the affinity of a client",
			cluster: []string{
				loadBalancer("web",
					`clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 32000}], externalIPs: [192.168.99.22], `+clientIP,
					"192.168.99.1"),
				slice("web", "8080", "10.180.0.1 A", "10.180.0.3 A", "10.180.1.1 B", "10.180.1.3 B"),
			},
			steps: []step{
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", four...),
				keepsBackend("pod", "10.180.0.2", "192.168.99.1:80", four...),
				keepsBackend("pod", "10.180.0.2", "192.168.0.2:32000", four...),
				keepsBackend("pod", "10.180.0.2", "192.168.99.22:80", four...),
			},
		},
		{
			covers:  []int{193},
			summary: "affinity to a remote backend by the ClusterIP does not apply where the policy is Local",
			cluster: []string{
				loadBalancer("web", `clusterIP: 172.30.0.41, externalTrafficPolicy: Local, ports: [{port: 80}], `+clientIP,
					"192.168.99.1"),
				slice("web", "8080", "10.180.1.1 B"),
			},
			steps: []step{
				keepsBackend("through the ClusterIP", "outside", "172.30.0.41:80", "10.180.1.1:8080"),
				apply(slice("web", "8080", "10.180.0.1 A", "10.180.0.3 A", "10.180.1.1 B")),
				keepsBackend("through the ClusterIP", "outside", "172.30.0.41:80", "10.180.1.1:8080"),
				keepsBackend("through the VIP", "outside", "192.168.99.1:80", "10.180.0.1:8080", "10.180.0.3:8080"),
			},
		},
		{
			covers: []int{194}, summary: "UDP clients keep their backend from any source port",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP}], `+clientIP),
				slice("web", "53/udp", "10.180.0.1 A", "10.180.1.1 B"),
			},
			steps: []step{
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:53/udp", "10.180.0.1:53", "10.180.1.1:53"),
				keepsBackend("node", "node", "172.30.0.41:53/udp", "10.180.0.1:53", "10.180.1.1:53"),
			},
		},
		{
			covers: []int{195}, summary: "affinity survives a restart of the proxy",
			cluster: manyPorts(10800, "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				firstChoice("pod", "10.180.0.2"),
				stopForNext,
				whileStopped(choose("pod", "10.180.0.2", same)),
				startProxy,
				choose("pod", "10.180.0.2", same),
				stopForNext,
				changeNoWait(service("other", `clusterIP: 172.30.0.42, ports: [{port: 80}]`), slice("other", "80", "10.180.0.3 A")),
				startProxy,
				choose("pod", "10.180.0.2", same),
			},
		},
	}
}

// affinityChanges is when a client gets another backend.
func affinityChanges() []scenario {
	three := []string{"10.180.0.1:8080", "10.180.1.1:8080", "10.180.1.3:8080"}
	pods := []string{"10.180.0.1 A", "10.180.1.1 B", "10.180.1.3 B"}
	const fields = `clusterIP: 172.30.0.41, ports: [{port: 80}], `
	return []scenario{
		{
			covers:  []int{185, 186},
			summary: "each new connection renews the affinity; it expires timeoutSeconds after the last",
			cluster: manyPorts(4, "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				firstChoice("pod", "10.180.0.2"),
				renew("pod", "10.180.0.2", 4*time.Second),
				idle(4500 * time.Millisecond),
				// IPVS remembers a client as long as it remembers its ended connections as well.
				when(inIPVSMode).otherwise(choose("pod", "10.180.0.2", chosenAnew)),
			},
		},
		{
			covers: []int{187, 188}, summary: "enabling or disabling affinity affects the next connection",
			cluster: []string{service("web", fields+`sessionAffinity: None`), slice("web", "8080", pods...)},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, three...),
				apply(service("web", fields+clientIP)),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				apply(service("web", fields+`sessionAffinity: None`)),
				reach("10.180.0.2", "172.30.0.41:80", original, three...),
			},
		},
		{
			covers: []int{189}, summary: "a client whose backend is deleted gets another one, and keeps it",
			cluster: []string{service("web", fields+clientIP), slice("web", "8080", pods...)},
			steps: []step{
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				removeBackendOf("pod", "", pods...),
				changesBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				apply(slice("web", "8080", pods...)),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
			},
		},
		{
			covers: []int{189}, summary: "a client whose backend becomes unready gets another one, and keeps it",
			cluster: []string{service("web", fields+clientIP), slice("web", "8080", pods...)},
			steps: []step{
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				removeBackendOf("pod", "000", pods...),
				changesBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
				keepsBackend("pod", "10.180.0.2", "172.30.0.41:80", three...),
			},
		},
		{
			covers: []int{190}, summary: "replacing a backend moves only the clients with affinity to it",
			cluster: manyPorts(10800, "10.180.0.1 A", "10.180.1.1 B", "10.180.1.3 B"),
			steps: []step{
				firstChoice("pod", "10.180.0.2"),
				apply(manyPortsSlice("10.180.0.1 A", "10.180.1.1 B", "10.180.1.4 B")),
				choose("pod", "10.180.0.2", onlyMovedFrom("3")),
				choose("pod", "10.180.0.2", same),
			},
		},
	}
}
