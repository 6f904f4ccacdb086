//go:build linux

package conformance

import "slices"

// clusterIPs is section 7.A: ClusterIP basics.
func clusterIPs() []scenario {
	return slices.Concat(balanced(), notBalanced(), ports(), backendKinds())
}

// aClusterIP is a Service with a backend on node A.
func aClusterIP() []string {
	return []string{
		service("svc1", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
		slice("svc1", "80", "10.180.0.1 A"),
	}
}

// twoClusterIPs are two Services. The second has many ports, and backends on both nodes.
func twoClusterIPs() []string {
	return []string{
		service("svc1", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
		slice("svc1", "80", "10.180.0.9 A"),
		service("svc2", `clusterIP: 172.30.0.42, ports: [
  {name: http, port: 80},
  {name: https, port: 443},
  {name: dns-tcp, port: 53, protocol: TCP},
  {name: dns, port: 53, protocol: UDP},
  {name: dns-sctp, port: 53, protocol: SCTP}]`),
		slice("svc2", "http:80 https:8443 dns-tcp:5353 dns:53/udp dns-sctp:53/sctp", "10.180.0.1 A", "10.180.2.1 B"),
	}
}

// balanced are connections to a ClusterIP that must reach a backend.
func balanced() []scenario {
	return []scenario{
		{
			covers: []int{1}, summary: "pod to ClusterIP reaches the backend, which sees the address of the pod",
			cluster: aClusterIP(),
			steps:   []step{reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:80")},
		},
		{
			covers: []int{2}, summary: "a backend that connects to its own ClusterIP is masqueraded (hairpin)",
			cluster: aClusterIP(),
			steps:   []step{reach("10.180.0.1", "172.30.0.41:80", masqueraded, "10.180.0.1:80")},
		},
		{
			covers: []int{3}, summary: "connections are spread evenly over a local and a remote backend",
			cluster: twoClusterIPs(),
			steps: []step{
				evenly(400, "10.180.0.2", "172.30.0.42:80", "10.180.0.1:80", "10.180.2.1:80"),
				reach("10.180.0.2", "172.30.0.42:80", original, "10.180.0.1:80", "10.180.2.1:80"),
			},
		},
		{
			covers: []int{4}, summary: "the target port may differ from the port of the Service",
			cluster: twoClusterIPs(),
			steps:   []step{reach("10.180.0.2", "172.30.0.42:443", original, "10.180.0.1:8443", "10.180.2.1:8443")},
		},
		{
			covers: []int{5, 6, 7}, summary: "TCP, UDP and SCTP on one port number are three independent ports",
			cluster: twoClusterIPs(),
			steps: []step{
				reach("10.180.0.2", "172.30.0.42:53/tcp", original, "10.180.0.1:5353", "10.180.2.1:5353"),
				reach("10.180.0.2", "172.30.0.42:53/udp", original, "10.180.0.1:53", "10.180.2.1:53"),
				when(servesSCTP, reach("10.180.0.2", "172.30.0.42:53/sctp", original, "10.180.0.1:53", "10.180.2.1:53")).
					otherwise(refused("10.180.0.2", "172.30.0.42:53/sctp")),
			},
		},
	}
}

// notBalanced are packets to a ClusterIP, or to an address of a ServiceCIDR, that match no port of a Service.
func notBalanced() []scenario {
	return []scenario{
		{
			covers: []int{8}, summary: "UDP to a port that is TCP only is not balanced",
			cluster: twoClusterIPs(),
			steps:   []step{unknownPort("10.180.0.2", "172.30.0.42:80/udp"), unknownPort("node", "172.30.0.42:80/udp")},
		},
		{
			covers: []int{9}, summary: "a port of another Service is not balanced",
			cluster: twoClusterIPs(),
			steps:   []step{unknownPort("10.180.0.2", "172.30.0.41:443"), unknownPort("node", "172.30.0.41:443")},
		},
		{
			covers: []int{10, 11}, summary: "connections to an unallocated address of the ServiceCIDR",
			cluster: aClusterIP(),
			steps: []step{
				unallocated("10.180.0.2", "172.30.0.50:80"),
				unallocated("node", "172.30.0.50:80"),
				unallocated("outside", "172.30.0.50:80"),
			},
		},
		{
			covers: []int{12}, summary: "an ICMP echo to a ClusterIP is not answered by a backend",
			cluster: aClusterIP(),
			steps:   []step{pingClusterIP("10.180.0.2", "172.30.0.41"), pingClusterIP("node", "172.30.0.41")},
		},
	}
}

// ports is the mapping from Service ports to target ports.
func ports() []scenario {
	return []scenario{
		{
			covers: []int{13}, summary: "each port of a Service leads to its own target port",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{name: a, port: 80}, {name: b, port: 81}]`),
				slice("web", "a:8080 b:8081", "10.180.0.1 A", "10.180.1.1 B"),
			},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:8080", "10.180.1.1:8080"),
				reach("10.180.0.2", "172.30.0.41:81", original, "10.180.0.1:8081", "10.180.1.1:8081"),
			},
		},
		{
			covers: []int{14}, summary: "a single port may have no name",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{name: "", port: 80}]`),
				slice("web", "8080", "10.180.0.1 A"),
			},
			steps: []step{reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:8080")},
		},
		{
			covers: []int{15}, summary: "a named target port may have a different number on each pod",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{name: http, port: 80, targetPort: web}]`),
				slice("web/a", "http:80", "10.180.0.1 A"),
				slice("web/b", "http:8080", "10.180.0.2 A"),
			},
			steps: []step{reach("10.180.0.3", "172.30.0.41:80", original, "10.180.0.1:80", "10.180.0.2:8080")},
		},
		{
			covers: []int{16}, summary: "two Services may share backends",
			cluster: []string{
				service("one", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				slice("one", "8080", "10.180.0.1 A", "10.180.1.1 B"),
				service("two", `clusterIP: 172.30.0.42, ports: [{port: 81}]`),
				slice("two", "8080", "10.180.0.1 A", "10.180.1.1 B"),
			},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:8080", "10.180.1.1:8080"),
				reach("10.180.0.2", "172.30.0.42:81", original, "10.180.0.1:8080", "10.180.1.1:8080"),
				remove("Service/one", "EndpointSlice/one"),
				reach("10.180.0.2", "172.30.0.42:81", original, "10.180.0.1:8080", "10.180.1.1:8080"),
			},
		},
	}
}

// backendKinds are backends in different places.
func backendKinds() []scenario {
	return []scenario{
		{
			covers: []int{17}, summary: "a backend on another node sees the address of the pod",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				slice("web", "80", "10.180.1.1 B"),
			},
			steps: []step{reach("10.180.0.2", "172.30.0.41:80", original, "10.180.1.1:80")},
		},
		{
			covers: []int{18}, summary: "a backend may have the address of a node (hostNetwork pod)",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				slice("web", "8080", "192.168.0.2 A", "192.168.0.3 B"),
			},
			steps: []step{reach("10.180.0.2", "172.30.0.41:80", original, "192.168.0.2:8080", "192.168.0.3:8080")},
		},
		{
			covers: []int{19}, summary: "a backend may have an address outside the cluster",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				slice("web", "8080", "203.0.113.2"),
			},
			steps: []step{reach("10.180.0.2", "172.30.0.41:80", original, "203.0.113.2:8080")},
		},
		{
			covers: []int{20}, summary: "data larger than one packet arrives complete",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{name: a, port: 80}, {name: b, port: 80, protocol: UDP}]`),
				slice("web", "a:80 b:80/udp", "10.180.1.1 B"),
			},
			steps: []step{
				large("10.180.0.2", "172.30.0.41:80/tcp", "10.180.1.1:80", 4000, 1<<20),
				large("10.180.0.2", "172.30.0.41:80/udp", "10.180.1.1:80", 1400, 4000, 40000),
			},
		},
	}
}
