//go:build linux

package conformance

import "slices"

// nodePorts is section 7.C: NodePorts.
func nodePorts() []scenario {
	return slices.Concat(nodePortAddresses(), loopbackByDefault(), loopbackNodePorts(), nodePortChanges())
}

// aNodePort is a Service with a NodePort and a backend on each node.
func aNodePort(ports string) []string {
	return []string{
		service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [`+ports+`]`),
		slice("web", "80 u:53/udp", "10.180.0.1 A", "10.180.1.1 B"),
	}
}

func nodePortAddresses() []scenario {
	const p3001 = `{port: 80, nodePort: 3001}`
	both := []string{"10.180.0.1:80", "10.180.1.1:80"}
	return []scenario{
		{
			covers:   []int{57, 58},
			summary:  "if all addresses are node port addresses, NodePorts are served on all addresses, also on later ones",
			settings: settings{nodePorts: []string{"0.0.0.0/0"}}, cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				reach("outside", "192.168.1.2:3001", masqueraded, both...),
				addAddress("192.168.0.77"),
				soon(reach("outside", "192.168.0.77:3001", masqueraded, both...)),
			},
		},
		{
			covers:  []int{57, 58, 59},
			summary: "by default NodePorts are served on the primary address, in iptables mode on all addresses",
			cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				when(servesAllAddresses, reach("outside", "192.168.1.2:3001", masqueraded, both...)).
					otherwise(untouched("outside", "192.168.1.2:3001")),
				addAddress("192.168.0.77"),
				when(servesAllAddresses, soon(reach("outside", "192.168.0.77:3001", masqueraded, both...))).
					otherwise(untouched("outside", "192.168.0.77:3001")),
			},
		},
		{
			covers: []int{60}, summary: "NodePorts are served only on addresses in the given prefixes, also among later ones",
			settings: settings{nodePorts: []string{"192.168.0.0/24", "192.168.1.0/24"}}, cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				reach("outside", "192.168.1.2:3001", masqueraded, both...),
				addAddress("192.168.99.2"),
				untouched("outside", "192.168.99.2:3001"),
			},
		},
		{
			covers: []int{61}, summary: "prefixes of one family do not restrict the other", families: dualStack,
			settings: settings{nodePorts: []string{"192.168.0.0/24"}},
			cluster: []string{
				service("web", `type: NodePort, clusterIPs: [172.30.0.41, "fd00:172:30::41"], ports: [`+p3001+`]`),
				slice("web/4", "80", "10.180.0.1 A"),
				slice("web/6", "80", "fd00:10:180::1 A"),
			},
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, "10.180.0.1:80"),
				untouched("outside", "192.168.1.2:3001"),
				reach("outside", "[2001:db8::1]:3001", masqueraded, "[fd00:10:180::1]:80"),
				reach("outside", "[2001:db8:1::2]:3001", masqueraded, "[fd00:10:180::1]:80"),
			},
		},
	}
}

// loopbackByDefault are connections to loopback addresses where no setting names localhost.
func loopbackByDefault() []scenario {
	web := aNodePort(`{port: 80, nodePort: 3001}`)
	both := []string{"10.180.0.1:80", "10.180.1.1:80"}
	served := when(inIptablesMode,
		routeLocalnetIs("1"),
		reach("node", "127.0.0.1:3001", masqueraded, both...),
		evenly(400, "node", "127.0.0.1:3001", both...),
		reach("node", "127.1.2.3:3001", masqueraded, both...),
		neighbourCannotReachLoopback(7777),
	).otherwise(
		routeLocalnetIs("0"),
		untouched("node", "127.0.0.1:3001"),
	)
	unserved := sequence(routeLocalnetIs("0"), untouched("node", "127.0.0.1:3001"), neighbourReachesLoopback(7777))
	return []scenario{
		{
			covers:   []int{62, 66},
			summary:  "127.0.0.1 serves NodePorts by default in iptables mode only, which blocks neighbours",
			families: onlyIPv4, cluster: web, steps: []step{served},
		},
		{
			covers: []int{62, 66}, summary: "node port addresses that are all addresses include loopback in iptables mode only",
			families: onlyIPv4, settings: settings{nodePorts: []string{"0.0.0.0/0"}}, cluster: web, steps: []step{served},
		},
		{
			covers:   []int{63},
			summary:  "with localhostNodePorts false 127.0.0.1 serves no NodePorts, and neighbours are not blocked",
			families: onlyIPv4,
			settings: settings{noLocalhost: true}, cluster: web,
			steps: []step{unserved, reach("outside", "192.168.0.2:3001", masqueraded, both...)},
		},
		{
			covers:   []int{64},
			summary:  "with nodePortAddresses without 127.0.0.1 it serves no NodePorts, and neighbours are not blocked",
			families: onlyIPv4,
			settings: settings{nodePorts: []string{"192.168.0.0/24"}}, cluster: web,
			steps: []step{unserved, reach("outside", "192.168.0.2:3001", masqueraded, both...)},
		},
		{
			covers: []int{65}, summary: "the IPv6 loopback address serves no NodePorts", families: onlyIPv6, cluster: web,
			steps: []step{untouched("node", "127.0.0.1:3001")},
		},
	}
}

// loopbackNodePorts are NodePorts with localhost in nodePortAddresses.
func loopbackNodePorts() []scenario {
	const p3001 = `{port: 80, nodePort: 3001}`
	both := []string{"10.180.0.1:80", "10.180.1.1:80"}
	return []scenario{
		{
			covers: []int{67, 79},
			summary: "with localhost in nodePortAddresses, without a feature gate, " +
				"127.0.0.1 and ::1 are balanced like any other address, as registry pulls need",
			settings: settings{nodePorts: []string{"primary", "localhost"}}, cluster: aNodePort(p3001),
			steps: []step{
				reach("node", "127.0.0.1:3001", masqueraded, both...),
				evenly(400, "node", "127.0.0.1:3001", both...),
			},
		},
		{
			covers: []int{68}, summary: "session affinity holds for 127.0.0.1 and ::1 too",
			settings: settings{nodePorts: []string{"primary", "localhost"}},
			cluster: []string{
				service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [`+p3001+`], sessionAffinity: ClientIP`),
				slice("web", "80", "10.180.0.1 A", "10.180.1.1 B"),
			},
			steps: []step{sticky("node", "127.0.0.1:3001", both...)},
		},
		{
			covers: []int{69}, summary: "UDP to 127.0.0.1 and ::1 is balanced like TCP (kube-proxy refuses it)",
			settings: settings{nodePorts: []string{"primary", "localhost"}},
			cluster:  aNodePort(`{name: u, protocol: UDP, port: 53, nodePort: 3001}`),
			steps:    []step{reach("node", "127.0.0.1:3001/udp", masqueraded, "10.180.0.1:53", "10.180.1.1:53")},
		},
		{
			covers: []int{71}, summary: "with localhost served, neighbours still cannot reach sockets on 127.0.0.1",
			families: onlyIPv4,
			settings: settings{nodePorts: []string{"primary", "localhost"}}, cluster: aNodePort(p3001),
			steps: []step{
				reach("node", "127.0.0.1:3001", masqueraded, both...),
				neighbourCannotReachLoopback(7777),
			},
		},
	}
}

func nodePortChanges() []scenario {
	const p3001 = `{port: 80, nodePort: 3001}`
	both := []string{"10.180.0.1:80", "10.180.1.1:80"}
	return []scenario{
		{
			covers: []int{72}, summary: "TCP and UDP may share a NodePort number",
			cluster: aNodePort(`{port: 80, nodePort: 30053}, {name: u, protocol: UDP, port: 53, nodePort: 30053}`),
			steps: []step{
				reach("outside", "192.168.0.2:30053/tcp", masqueraded, both...),
				reach("outside", "192.168.0.2:30053/udp", masqueraded, "10.180.0.1:53", "10.180.1.1:53"),
			},
		},
		{
			covers: []int{73}, summary: "a NodePort changes its number",
			cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				apply(aNodePort(`{port: 80, nodePort: 3005}`)...),
				untouched("outside", "192.168.0.2:3001"),
				reach("outside", "192.168.0.2:3005", masqueraded, both...),
			},
		},
		{
			covers: []int{74}, summary: "a NodePort is removed when the type of the Service becomes ClusterIP",
			cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				apply(service("web", `type: ClusterIP, clusterIP: 172.30.0.41, ports: [{port: 80}]`)),
				untouched("outside", "192.168.0.2:3001"),
				reach("10.180.0.2", "172.30.0.41:80", original, both...),
			},
		},
		{
			covers: []int{75}, summary: "a NodePort changes its protocol",
			cluster: aNodePort(p3001),
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				untouched("outside", "192.168.0.2:3001/udp"),
				apply(aNodePort(`{name: u, protocol: UDP, port: 53, nodePort: 3001}`)...),
				untouched("outside", "192.168.0.2:3001/tcp"),
				reach("outside", "192.168.0.2:3001/udp", masqueraded, "10.180.0.1:53", "10.180.1.1:53"),
			},
		},
		{
			covers: []int{76}, summary: "a NodePort has precedence over a process of the node that listens on the same port",
			cluster: aNodePort(p3001), pods: []string{"node 3001/tcp"},
			steps: []step{
				reach("outside", "192.168.0.2:3001", masqueraded, both...),
				reach("node", "192.168.0.2:3001", masqueraded, both...),
			},
		},
		{
			covers: []int{77}, summary: "a NodePort reaches a backend on another node",
			cluster: []string{
				service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [`+p3001+`]`),
				slice("web", "80", "10.180.1.1 B"),
			},
			steps: []step{reach("outside", "192.168.0.2:3001", masqueraded, "10.180.1.1:80")},
		},
		{
			covers: []int{78}, summary: "a pod of another node reaches the NodePort of this one",
			cluster: aNodePort(p3001),
			steps: []step{
				reach("10.180.1.9@B", "192.168.0.2:3001", masqueraded, both...),
				reach("node-b", "192.168.0.2:3001", masqueraded, both...),
			},
		},
	}
}
