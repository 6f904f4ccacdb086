//go:build linux

package conformance

import "slices"

// dualStackSection is section 7.Q: dual-stack and SCTP.
func dualStackSection() []scenario {
	return slices.Concat(dualStackServices(), dualStackFrontends(), sctpServices(), serviceCIDRs())
}

const (
	dualIPs     = `clusterIPs: [172.30.0.41, "fd00:172:30::41"], ipFamilies: [IPv4, IPv6], `
	vip4, vip6  = "172.30.0.41:80", "[fd00:172:30::41]:80"
	pod4, pod6  = "10.180.0.1:8080", "[fd00:10:180::1]:8080"
	far4, far6  = "10.180.1.1:8080", "[fd00:10:180:1::1]:8080"
	dualClient  = "10.180.0.2"
	onePortHTTP = `ports: [{port: 80}]`
)

func slice4() string { return slice("web/4", "8080", "10.180.0.1 A", "10.180.1.1 B") }
func slice6() string { return slice("web/6", "8080", "fd00:10:180::1 A", "fd00:10:180:1::1 B") }

// dualStackServices are Services with ClusterIPs of one or both families.
func dualStackServices() []scenario {
	const empty6 = `{kind: EndpointSlice, metadata: {name: web-6, labels: {kubernetes.io/service-name: web}},
  addressType: IPv6, ports: [{name: "", port: 8080}], endpoints: []}`
	each := []step{
		reach(dualClient, vip4, original, pod4, far4),
		reach(dualClient, vip6, original, pod6, far6),
	}
	return []scenario{
		{
			covers: []int{302}, summary: "each ClusterIP has the endpoints of its own family", families: dualStack,
			cluster: []string{service("web", dualIPs+onePortHTTP), slice4(), slice6()},
			steps:   each,
		},
		{
			covers: []int{303}, summary: "an IPv6 Service is not served in IPv4", families: dualStack,
			cluster: []string{
				service("web", `clusterIPs: ["fd00:172:30::41"], ipFamilies: [IPv6], `+onePortHTTP), slice4(), slice6(),
			},
			steps: []step{reach(dualClient, vip6, original, pod6, far6), unallocated(dualClient, vip4)},
		},
		{
			covers: []int{303}, summary: "an IPv4 Service is not served in IPv6", families: dualStack,
			cluster: []string{service("web", `clusterIPs: [172.30.0.41], ipFamilies: [IPv4], `+onePortHTTP), slice4(), slice6()},
			steps:   []step{reach(dualClient, vip4, original, pod4, far4), unallocated(dualClient, vip6)},
		},
		{
			covers: []int{304}, summary: "the order of families does not matter", families: dualStack,
			cluster: []string{
				service("web", `clusterIPs: ["fd00:172:30::41", 172.30.0.41], ipFamilies: [IPv6, IPv4], `+onePortHTTP),
				slice6(), slice4(),
			},
			steps: each,
		},
		{
			covers: []int{306}, summary: "an IPv6 pod that connects to itself by the ClusterIP sees an IPv6 address of the node",
			families: onlyIPv6,
			cluster:  []string{service("web", `clusterIP: 172.30.0.41, `+onePortHTTP), slice("web", "8080", "10.180.0.1 A")},
			steps:    []step{reach("10.180.0.1", "172.30.0.41:80", masqueraded, "10.180.0.1:8080")},
		},
		{
			covers: []int{307}, summary: "with endpoints in one family only the other family refuses", families: dualStack,
			cluster: []string{service("web", dualIPs+onePortHTTP), slice4(), empty6},
			steps: []step{
				refused(dualClient, vip6),
				reach(dualClient, vip4, original, pod4, far4),
				apply(slice6()),
				reach(dualClient, vip6, original, pod6, far6),
				apply(empty6),
				refused(dualClient, vip6),
				reach(dualClient, vip4, original, pod4, far4),
			},
		},
		{
			covers: []int{302}, summary: "adding and removing a family does not interrupt the other", families: dualStack,
			cluster: []string{service("web", `clusterIPs: [172.30.0.41], ipFamilies: [IPv4], `+onePortHTTP), slice4(), slice6()},
			steps: []step{
				uninterrupted(dualClient, vip4,
					unallocated(dualClient, vip6),
					apply(service("web", dualIPs+onePortHTTP)),
					reach(dualClient, vip6, original, pod6, far6),
					apply(service("web", `clusterIPs: [172.30.0.41], ipFamilies: [IPv4], `+onePortHTTP)),
					unallocated(dualClient, vip6),
				),
			},
		},
	}
}

// dualStackFrontends are NodePorts and load balancers.
func dualStackFrontends() []scenario {
	const http4, http6 = "192.168.99.1:80", "[fd00:192:168:99::1]:80"
	ranged := func(ranges string) string {
		return loadBalancer("web", dualIPs+`loadBalancerSourceRanges: [`+ranges+`], `+onePortHTTP,
			"192.168.99.1", "fd00:192:168:99::1")
	}
	return []scenario{
		{
			covers: []int{305}, summary: "a NodePort works in both families", families: dualStack,
			cluster: []string{
				service("web", `type: NodePort, `+dualIPs+`ports: [{port: 80, nodePort: 32000}]`), slice4(), slice6(),
			},
			steps: []step{
				reach("outside", "192.168.0.2:32000", masqueraded, pod4, far4),
				reach("outside", "[2001:db8::1]:32000", masqueraded, pod6, far6),
				reach("node", "192.168.0.2:32000", masqueraded, pod4, far4),
				reach("node", "[2001:db8::1]:32000", masqueraded, pod6, far6),
			},
		},
		{
			covers: []int{308}, summary: "source ranges apply to their own family", families: dualStack,
			cluster: []string{ranged(`203.0.113.0/25, "2001:db8:113::130/128"`), slice4(), slice6()},
			steps: []step{
				reach("outside", http4, masqueraded, pod4, far4),
				dropped("blocked", http4),
				dropped("outside", http6),
				reach("blocked", http6, masqueraded, pod6, far6),
				apply(ranged(`203.0.113.128/25, "2001:db8:113::/120"`)),
				dropped("outside", http4),
				reach("blocked", http4, masqueraded, pod4, far4),
				reach("outside", http6, masqueraded, pod6, far6),
				dropped("blocked", http6),
			},
		},
		{
			covers: []int{308}, summary: "source ranges of one family block the other (kube-proxy admits all clients there)",
			families: dualStack,
			cluster:  []string{ranged(`203.0.113.0/24`), slice4(), slice6()},
			steps: []step{
				reach("outside", http4, masqueraded, pod4, far4),
				dropped("outside", http6),
				apply(ranged(`"2001:db8:113::/64"`)),
				dropped("outside", http4),
				reach("outside", http6, masqueraded, pod6, far6),
			},
		},
	}
}

func sctpServices() []scenario {
	const client, vip = "10.180.0.2", "172.30.0.41:5060/sctp"
	const here, there = "10.180.0.1:5060", "10.180.1.1:5060"
	web := service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 5060, protocol: SCTP, nodePort: 32000}]`)
	pods := slice("web", "5060/sctp", "10.180.0.1 A", "10.180.1.1 B")
	return []scenario{
		{
			covers: []int{309}, summary: "SCTP is balanced and masqueraded like TCP",
			cluster: []string{web, pods},
			steps: []step{
				reach(client, vip, original, here, there),
				reach("10.180.0.1", vip, anySource, here, there),
				reach("node", vip, anySource, here, there),
				reach("outside", "192.168.0.2:32000/sctp", masqueraded, here, there),
				evenly(300, client, vip, here, there),
				unknownPort(client, "172.30.0.41:5061/sctp"),
				apply(slice("web", "5060/sctp")),
				soon(refused(client, vip)), // from a new source port: associations of earlier ones stay
				soon(refused("outside", "192.168.0.2:32000/sctp")),
			},
		},
		{
			covers: []int{310}, summary: "an SCTP association to a deleted endpoint is not touched",
			cluster: []string{
				service("web",
					`clusterIP: 172.30.0.41, ports: [{name: s, port: 5060, protocol: SCTP}, {name: u, port: 5060, protocol: UDP}]`),
				slice("web", "s:5060/sctp u:5060/udp", "10.180.0.1 A"),
			},
			steps: []step{
				open("kept", client, vip, here),
				open("udp", client, "172.30.0.41:5060/udp", here),
				entriesAfter(apply(slice("web", "s:5060/sctp u:5060/udp", "10.180.1.1 B")), entryDeleted("udp"), entryKept("kept")),
				send("kept", here),
				when(inIPVSMode). // connections end with their virtual server
							otherwise(entriesAfter(remove("Service/web"), entryDeleted("udp"), entryKept("kept")), send("kept", here)),
			},
		},
		{
			covers: []int{311}, summary: "SCTP Services do not load the sctp module",
			cluster: []string{service("other", `clusterIP: 172.30.0.42, ports: [{port: 80}]`)},
			steps: []step{
				withoutLoadingSCTP(
					apply(web, pods),
					reach(client, vip, original, here, there),
					apply(service("web", `clusterIP: 172.30.0.41, `+clientIP+`, ports: [{port: 5060, protocol: SCTP}]`)),
					keepsBackend("client", "10.180.0.3", vip, here, there),
					remove("Service/web", "EndpointSlice/web"),
				),
			},
		},
	}
}

// serviceCIDRs are ServiceCIDRs that are added and deleted.
func serviceCIDRs() []scenario {
	const client = "10.180.0.2"
	more := func(name, cidrs string) string {
		return `{kind: ServiceCIDR, metadata: {name: ` + name + `}, spec: {cidrs: [` + cidrs + `]}}`
	}
	return []scenario{
		{
			covers: []int{312}, summary: "a ServiceCIDR takes effect at once when added, and none when deleted",
			cluster: []string{service("other", `clusterIP: 172.30.0.42, ports: [{port: 80}]`)},
			steps: []step{
				untouched(client, "172.31.0.50:80"),
				apply(more("more", "172.31.0.0/16"), service("web", `clusterIP: 172.31.0.41, ports: [{port: 80}]`),
					slice("web", "8080", "10.180.0.1 A")),
				reach(client, "172.31.0.41:80", original, "10.180.0.1:8080"),
				unallocated(client, "172.31.0.50:80"),
				unallocated(client, "172.30.0.50:80"),
				apply(more("same", "172.31.0.0/16")),
				remove("ServiceCIDR/more"),
				unallocated(client, "172.31.0.50:80"),
				remove("ServiceCIDR/same"),
				untouched(client, "172.31.0.50:80"),
				reach(client, "172.31.0.41:80", original, "10.180.0.1:8080"),
				unallocated(client, "172.30.0.50:80"),
			},
		},
	}
}
