//go:build linux

package conformance

// visibleSettings is section 7.P: settings that affect connections.
func visibleSettings() []scenario {
	aNode := func(address4, address6 string) string {
		return `{kind: Node, metadata: {name: node-a}, status: {addresses: [
  {type: InternalIP, address: ` + address4 + `}, {type: InternalIP, address: "` + address6 + `"}]}}`
	}
	web := []string{
		service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 32000}]`),
		slice("web", "8080", "10.180.0.1 A"),
	}
	const pod = "10.180.0.1:8080"
	return []scenario{
		{
			covers: []int{291}, summary: "nodePortAddresses with a prefix and all addresses include all addresses", cluster: web,
			settings: settings{nodePorts: []string{"192.168.1.0/24", "all"}},
			steps: []step{
				reach("outside", "192.168.1.2:32000", masqueraded, pod),
				reach("outside", "192.168.0.2:32000", masqueraded, pod),
				addAddress("192.168.0.77"),
				soon(reach("outside", "192.168.0.77:32000", masqueraded, pod)),
			},
		},
		{
			covers: []int{297}, summary: "when the address of the Node changes NodePorts move at once (kube-proxy exits)",
			cluster:  web,
			settings: settings{nodePorts: []string{"primary"}},
			steps: []step{
				open("kept", "outside", "192.168.0.2:32000", pod),
				reach("outside", "192.168.0.2:32000", masqueraded, pod),
				untouched("outside", "192.168.1.2:32000"),
				apply(aNode("192.168.1.2", "2001:db8:1::2")),
				reach("outside", "192.168.1.2:32000", masqueraded, pod),
				untouched("outside", "192.168.0.2:32000"),
				when(inIPVSMode).otherwise(send("kept", pod)), // it ends with its virtual server
			},
		},
		{
			covers: []int{301}, summary: "a host without IPv6 serves IPv4, and IPv6 is not handled", families: dualStack,
			settings: settings{disabledFamily: "IPv6"},
			cluster: []string{
				service("web",
					`type: NodePort, clusterIPs: [172.30.0.41, "fd00:172:30::41"], ports: [{port: 80, nodePort: 32000}]`),
				slice("web/4", "8080", "10.180.0.1 A"),
				slice("web/6", "8080", "fd00:10:180::1 A"),
			},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
				reach("outside", "192.168.0.2:32000", masqueraded, pod),
				untouched("10.180.0.2", "[fd00:172:30::41]:80"),
				untouched("10.180.0.2", "[fd00:172:30::50]:80"),
				untouched("outside", "[2001:db8::1]:32000"),
			},
		},
	}
}
