//go:build linux

package conformance

import "fmt"

// loadBalancers is section 7.D: VIPs and their source ranges.
func loadBalancers() []scenario {
	return append(append(sourceRanges(), otherRanges()...), vipServices()...)
}

// guarded is a LoadBalancer with two VIPs and source ranges.
func guarded(ranges string) []string {
	return []string{
		loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  externalIPs: [192.168.99.11], loadBalancerSourceRanges: [`+ranges+`]`, "1.2.3.4", "5.6.7.8"),
		slice("web", "80", "10.180.0.1 A"),
	}
}

func sourceRanges() []scenario {
	const ranges = `"192.168.0.0/24", " 203.0.113.0/25"`
	const backend = "10.180.0.1:80"
	return []scenario{
		{
			covers: []int{80}, summary: "source ranges do not apply to the ClusterIP", cluster: guarded(ranges),
			steps: []step{reach("10.0.0.2", "172.30.0.41:80", original, backend)},
		},
		{
			covers: []int{81}, summary: "a client in the ranges reaches the VIPs", cluster: guarded(ranges),
			steps: []step{
				reach("outside", "1.2.3.4:80", masqueraded, backend),
				reach("outside", "5.6.7.8:80", masqueraded, backend),
			},
		},
		{
			covers: []int{82}, summary: "a client outside the ranges is dropped", cluster: guarded(ranges),
			steps: []step{dropped("blocked", "1.2.3.4:80"), dropped("blocked", "5.6.7.8:80")},
		},
		{
			covers: []int{83}, summary: "a pod outside the ranges is dropped", cluster: guarded(ranges),
			steps: []step{dropped("10.0.0.2", "1.2.3.4:80"), dropped("10.0.0.2", "5.6.7.8:80")},
		},
		{
			covers: []int{84}, summary: "the node in the ranges reaches the VIPs", cluster: guarded(ranges),
			steps: []step{
				reach("node", "1.2.3.4:80", masqueraded, backend),
				reach("node", "5.6.7.8:80", masqueraded, backend),
			},
		},
		{
			covers:  []int{85},
			summary: "the node in the ranges reaches a VIP that is one of its own addresses, and is then the source",
			cluster: guarded(ranges),
			steps:   []step{addAddress("1.2.3.4"), reach("node", "1.2.3.4:80", masqueraded, backend)},
		},
		{
			covers: []int{86}, summary: "the node outside the ranges does not reach a VIP that is one of its own addresses",
			cluster: guarded(`"203.0.113.0/25"`),
			steps: []step{
				addAddress("1.2.3.4"), dropped("node", "1.2.3.4:80"),
				dropped("node", "5.6.7.8:80"), reach("outside", "1.2.3.4:80", masqueraded, backend),
			},
		},
		{
			covers: []int{87, 88}, summary: "source ranges do not apply to NodePorts and externalIPs", cluster: guarded(ranges),
			steps: []step{
				reach("blocked", "192.168.0.2:3001", masqueraded, backend),
				reach("blocked", "192.168.99.11:80", masqueraded, backend),
			},
		},
	}
}

func otherRanges() []scenario {
	const backend = "10.180.0.1:80"
	allClients := func(check func(from string) step) []step {
		return []step{check("10.0.0.2"), check("node"), check("outside"), check("blocked"), check("10.180.1.9@B")}
	}
	admitted := allClients(func(from string) step { return reach(from, "1.2.3.4:80", masqueraded, backend) })
	blocked := allClients(func(from string) step { return dropped(from, "1.2.3.4:80") })
	return []scenario{
		{
			covers: []int{89}, summary: "a range of all addresses admits all clients",
			cluster: guarded(`"0.0.0.0/0"`), steps: admitted,
		},
		{
			covers: []int{90}, summary: "two ranges with half of all addresses each admit all clients",
			cluster: guarded(`"0.0.0.0/1", "128.0.0.0/1"`), steps: admitted,
		},
		{
			covers: []int{91}, summary: "a range without any client admits no client",
			cluster: guarded(`"255.0.0.0/32"`), steps: blocked,
		},
		{
			covers: []int{92}, summary: "after the ranges are deleted all clients are admitted",
			cluster: guarded(`"255.0.0.0/32"`),
			steps:   append([]step{dropped("outside", "1.2.3.4:80"), apply(guarded("")...)}, admitted...),
		},
		{
			covers: []int{93}, summary: "ranges may be single addresses of pods and nodes",
			cluster: guarded(`"10.180.0.5/32", "192.168.0.2/32"`),
			steps: []step{
				reach("10.180.0.5", "1.2.3.4:80", masqueraded, backend),
				reach("node", "1.2.3.4:80", masqueraded, backend),
				dropped("10.180.0.6", "1.2.3.4:80"), dropped("outside", "1.2.3.4:80"),
			},
		},
		{
			covers: []int{94}, summary: "an invalid range is ignored, the others apply",
			cluster: guarded(`nonsense, "203.0.113.0/25"`),
			steps:   []step{reach("outside", "1.2.3.4:80", masqueraded, backend), dropped("blocked", "1.2.3.4:80")},
		},
		{
			covers: []int{95}, summary: "ranges of one family block the VIPs of the other (kube-proxy admits all clients there)",
			families: dualStack,
			cluster: []string{
				loadBalancer("web", `clusterIPs: [172.30.0.41, "fd00:172:30::41"], ports: [{port: 80, nodePort: 3001}],
  loadBalancerSourceRanges: ["203.0.113.0/25"]`, "1.2.3.4", "fd00:1:2:3::4"),
				slice("web/4", "80", "10.180.0.1 A"),
				slice("web/6", "80", "fd00:10:180::1 A"),
			},
			steps: []step{
				reach("outside", "1.2.3.4:80", masqueraded, backend),
				dropped("outside", "[fd00:1:2:3::4]:80"),
				reach("outside", "[2001:db8::1]:3001", masqueraded, "[fd00:10:180::1]:80"),
			},
		},
		{
			covers:  []int{96},
			summary: "without backends a client in the ranges is refused, and one outside depends on the mode",
			cluster: guarded(`"203.0.113.0/25"`),
			steps: []step{
				remove("EndpointSlice/web"),
				emptyVIPUnlisted("blocked", "1.2.3.4:80"), refused("outside", "1.2.3.4:80"),
			},
		},
	}
}

// ingress is a LoadBalancer with the given entries in its status.
func ingress(ports, status string) []string {
	return []string{
		fmt.Sprintf(`{kind: Service, metadata: {name: web},
  spec: {type: LoadBalancer, clusterIP: 172.30.0.41, ports: [%s]},
  status: {loadBalancer: {ingress: [%s]}}}`, ports, status),
		slice("web", "80 u:80/udp", "10.180.0.1 A"),
	}
}

func vipServices() []scenario {
	const p3001, backend = `{port: 80, nodePort: 3001}`, "10.180.0.1:80"
	return []scenario{
		{
			covers: []int{97}, summary: "a VIP of ipMode VIP is balanced on the node",
			cluster: ingress(p3001, `{ip: 1.2.3.4, ipMode: VIP}`),
			steps:   []step{reach("10.180.0.2", "1.2.3.4:80", masqueraded, backend)},
		},
		{
			covers: []int{98}, summary: "an address of ipMode Proxy is not handled on the node",
			cluster: ingress(p3001, `{ip: 1.2.3.4, ipMode: Proxy}`),
			steps: []step{
				untouched("10.180.0.2", "1.2.3.4:80"), untouched("node", "1.2.3.4:80"),
				reach("outside", "192.168.0.2:3001", masqueraded, backend),
			},
		},
		{
			covers: []int{99}, summary: "an address without an ipMode is a VIP", cluster: ingress(p3001, `{ip: 1.2.3.4}`),
			steps: []step{reach("10.180.0.2", "1.2.3.4:80", masqueraded, backend)},
		},
		{
			covers: []int{100}, summary: "a load balancer with a hostname has no VIP, but NodePorts",
			cluster: ingress(p3001, `{hostname: lb.example}`),
			steps: []step{
				untouched("10.180.0.2", "1.2.3.4:80"),
				reach("outside", "192.168.0.2:3001", masqueraded, backend),
			},
		},
		{
			covers: []int{101, 102}, summary: "a LoadBalancer may have no NodePorts, and get them later",
			cluster: ingress(`{port: 80}`, `{ip: 1.2.3.4}`),
			steps: []step{
				reach("outside", "1.2.3.4:80", masqueraded, backend),
				untouched("outside", "192.168.0.2:3001"), untouched("outside", "192.168.0.2:80"),
				apply(ingress(p3001, `{ip: 1.2.3.4}`)...),
				reach("outside", "192.168.0.2:3001", masqueraded, backend),
				reach("outside", "1.2.3.4:80", masqueraded, backend),
			},
		},
		{
			covers: []int{103}, summary: "TCP and UDP may share a port of a VIP",
			cluster: ingress(p3001+`, {name: u, protocol: UDP, port: 80, nodePort: 3001}`, `{ip: 1.2.3.4}`),
			steps: []step{
				reach("10.180.0.2", "1.2.3.4:80/tcp", masqueraded, backend),
				reach("10.180.0.2", "1.2.3.4:80/udp", masqueraded, backend),
			},
		},
		{
			covers: []int{104}, summary: "a VIP is balanced as soon as it is in the status", cluster: ingress(p3001, ""),
			steps: []step{
				untouched("10.180.0.2", "1.2.3.4:80"),
				apply(ingress(p3001, `{ip: 1.2.3.4}`)...),
				reach("10.180.0.2", "1.2.3.4:80", masqueraded, backend),
			},
		},
		{
			covers: []int{105}, summary: "after the VIP changes the old address is not handled",
			cluster: ingress(p3001, `{ip: 1.2.3.4}`),
			steps: []step{
				reach("outside", "1.2.3.4:80", masqueraded, backend),
				apply(ingress(p3001, `{ip: 5.6.7.8}`)...),
				untouched("10.180.0.2", "1.2.3.4:80"),
				reach("outside", "5.6.7.8:80", masqueraded, backend),
			},
		},
	}
}
