//go:build linux

package conformance

import "slices"

// externalLocals is section 7.E: externalTrafficPolicy Local.
func externalLocals() []scenario {
	all := append(externalLocal(), localOverUDPAndSCTP()...)
	return slices.Concat(all, localOnOtherNodes(), localChanges(), firewalled())
}

// exposed is a Service with an address of every kind and an externalTrafficPolicy. See onFrontends.
func exposed(policy string, endpoints ...string) []string {
	return []string{
		loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  externalIPs: [192.168.99.11], externalTrafficPolicy: `+policy, "1.2.3.4"),
		slice("web", "80", endpoints...),
	}
}

// everyProtocol is like exposed, with ports of TCP, UDP and SCTP.
func everyProtocol(policy string, endpoints ...string) []string {
	return []string{
		loadBalancer("web", `clusterIP: 172.30.0.41, externalIPs: [192.168.99.11], ports: [
  {name: t, port: 80, nodePort: 3001},
  {name: u, port: 80, nodePort: 3001, protocol: UDP},
  {name: s, port: 80, nodePort: 3001, protocol: SCTP}], externalTrafficPolicy: `+policy, "1.2.3.4"),
		slice("web", "t:80 u:80/udp s:80/sctp", endpoints...),
	}
}

// onFrontends runs a check for each external address of exposed.
func onFrontends(check func(to string) step) step {
	return sequence(check("192.168.99.11:80"), check("1.2.3.4:80"), check("192.168.0.2:3001"))
}

func externalLocal() []scenario {
	const here, elsewhere = "10.180.2.1:80", "10.180.0.1:80"
	both := exposed("Local", "10.180.0.1 B", "10.180.2.1 A")
	remote := exposed("Local", "10.180.0.1 B")
	return []scenario{
		{
			covers: []int{106}, summary: "pod to ClusterIP reaches all backends", cluster: both,
			steps: []step{reach(aPod, "172.30.0.41:80", original, here, elsewhere)},
		},
		{
			covers: []int{107}, summary: "pod to any external address reaches all backends", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach(aPod, to, original, here, elsewhere) })},
		},
		{
			covers: []int{108}, summary: "outside reaches the local backend, which sees the client's address", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach("outside", to, original, here) })},
		},
		{
			covers: []int{109}, summary: "node to any external address reaches all backends", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach("node", to, masqueraded, here, elsewhere) })},
		},
		{
			covers: []int{110}, summary: "without a local backend outside is dropped", cluster: remote,
			steps: []step{onFrontends(func(to string) step { return dropped("outside", to) })},
		},
		{
			covers: []int{111}, summary: "without a local backend local pods and the node reach the remote ones",
			cluster: remote,
			steps: []step{onFrontends(func(to string) step {
				return sequence(reach(aPod, to, original, elsewhere), reach("node", to, masqueraded, elsewhere))
			})},
		},
		{
			covers: []int{118}, summary: "the policy has no effect on a Service of type ClusterIP",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}], externalTrafficPolicy: Local`),
				slice("web", "80", "10.180.0.1 B", "10.180.2.1 A"),
			},
			steps: []step{
				reach(aPod, "172.30.0.41:80", original, here, elsewhere),
				reach("outside", "172.30.0.41:80", masqueraded, here, elsewhere),
				apply(slice("web", "80", "10.180.0.1 B")),
				reach("outside", "172.30.0.41:80", masqueraded, elsewhere),
			},
		},
		{
			covers: []int{119}, summary: "zone hints do not exclude local backends",
			cluster: exposed("Local", "10.180.0.1 B zones=a", "10.180.2.1 A zones=b", "10.180.2.2 A zones=b"),
			steps: []step{onFrontends(func(to string) step {
				return reach("outside", to, original, "10.180.2.1:80", "10.180.2.2:80")
			})},
		},
	}
}

// localOverUDPAndSCTP repeats checks of externalLocal over UDP and SCTP. The objects do not
// change meanwhile: conntrack would take a new client with the port of an old one for that one.
func localOverUDPAndSCTP() []scenario {
	const here, elsewhere = "10.180.2.1:80", "10.180.0.1:80"
	both := func(check func(to string) step) step {
		return onFrontends(func(to string) step {
			return sequence(check(to+"/udp"), when(servesSCTP, check(to+"/sctp")).otherwise())
		})
	}
	return []scenario{
		{
			covers: []int{107, 108, 109}, summary: "the same over UDP and SCTP",
			cluster: everyProtocol("Local", "10.180.0.1 B", "10.180.2.1 A"),
			steps: []step{both(func(to string) step {
				return sequence(
					reach(aPod, to, original, here, elsewhere),
					reach("outside", to, original, here),
					reach("node", to, masqueraded, here, elsewhere),
				)
			})},
		},
		{
			covers: []int{110, 111}, summary: "the same over UDP and SCTP", cluster: everyProtocol("Local", "10.180.0.1 B"),
			steps: []step{both(func(to string) step {
				return sequence(
					dropped("outside", to),
					reach(aPod, to, original, elsewhere),
					reach("node", to, masqueraded, elsewhere),
				)
			})},
		},
	}
}

// localOnOtherNodes are clients on another node, and the node itself.
func localOnOtherNodes() []scenario {
	return []scenario{
		{
			covers: []int{112}, summary: "a pod of another node, recognized as a pod, reaches remote backends",
			cluster: exposed("Local", "203.0.113.2"),
			steps:   []step{reach("10.180.1.9@B", "192.168.0.2:3001", original, "203.0.113.2:80")},
		},
		{
			covers: []int{112}, summary: "a pod of another node, not recognized as a pod, is dropped",
			cluster: exposed("Local", "203.0.113.2"), settings: settings{detector: "NodeCIDR"},
			steps: []step{
				dropped("10.180.1.9@B", "192.168.0.2:3001"),
				reach("10.180.0.9", "192.168.0.2:3001", original, "203.0.113.2:80"),
			},
		},
		{
			covers: []int{113}, summary: "another node reaches the local backend, which sees the client's address",
			cluster: exposed("Local", "10.180.2.1 A", "10.180.0.1 B"),
			steps:   []step{reach("node-b", "192.168.0.2:3001", original, "10.180.2.1:80")},
		},
		{
			covers: []int{114}, summary: "the node reaches remote backends through its own NodePort",
			cluster: exposed("Local", "10.180.0.1 B"),
			steps:   []step{reach("node", "192.168.0.2:3001", masqueraded, "10.180.0.1:80")},
		},
		{
			covers: []int{115}, summary: "another node is dropped by a node without a backend",
			cluster: exposed("Local", "10.180.0.1 B"),
			steps:   []step{dropped("node-b", "192.168.0.2:3001")},
		},
	}
}

// localChanges are changes of the policy and the endpoints. They do not cover the health check node port.
func localChanges() []scenario {
	all := onFrontends(func(to string) step {
		return reach("outside", to, masqueraded, "10.180.0.1:80", "10.180.2.1:80")
	})
	here := onFrontends(func(to string) step { return reach("outside", to, original, "10.180.2.1:80") })
	endpoints := []string{"10.180.0.1 B", "10.180.2.1 A"}
	return []scenario{
		{
			covers: []int{116, 117}, summary: "the policy changes to Cluster and back",
			cluster: exposed("Local", endpoints...),
			steps: []step{
				here,
				apply(exposed("Cluster", endpoints...)...), all,
				apply(exposed("Local", endpoints...)...), here,
			},
		},
		{
			covers: []int{116, 117}, summary: "a node without a local backend balances under Cluster only",
			cluster: exposed("Local", "10.180.0.1 B"),
			steps: []step{
				onFrontends(func(to string) step { return dropped("outside", to) }),
				apply(exposed("Cluster", "10.180.0.1 B")...),
				onFrontends(func(to string) step { return reach("outside", to, masqueraded, "10.180.0.1:80") }),
				apply(exposed("Local", "10.180.0.1 B")...),
				onFrontends(func(to string) step { return dropped("outside", to) }),
			},
		},
		{
			covers: []int{120}, summary: "a rolling update under Local interrupts no connection",
			cluster: exposed("Local", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				uninterrupted("outside", "1.2.3.4:80", rollingUpdate()...),
				reach("outside", "1.2.3.4:80", original, "10.180.0.2:80"),
			},
		},
		{
			covers: []int{121}, summary: "a rolling update under Cluster interrupts no connection",
			cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				uninterrupted("outside", "1.2.3.4:80", rollingUpdate()...),
				reach("outside", "1.2.3.4:80", masqueraded, "10.180.0.2:80", "10.180.1.2:80"),
			},
		},
	}
}

// firewalled is a node whose own firewall drops everything that no rule accepts. In iptables
// mode the proxy accepts connections that it masquerades; in nftables mode it accepts nothing.
func firewalled() []scenario {
	const here, elsewhere = "10.180.0.1:80", "10.180.1.1:80"
	return []scenario{
		{
			covers: []int{122}, summary: "with FORWARD policy DROP masqueraded connections pass in iptables mode",
			cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				enableFirewall,
				onFrontends(func(to string) step {
					return when(acceptsMasqueraded,
						reach("outside", to, masqueraded, here, elsewhere), reach(aPod, to, masqueraded, here, elsewhere),
					).otherwise(filtered("outside", to), filtered(aPod, to))
				}),
				filtered(aPod, inside), // other programs must accept packets with the pod's address
				remove("EndpointSlice/web"),
				when(inIPVSMode, filtered("outside", outwards), filtered(aPod, inside)).
					otherwise(refused("outside", outwards), refused(aPod, inside)),
			},
		},
		{
			covers: []int{122}, summary: "with FORWARD policy DROP connections that keep their source do not pass",
			cluster: exposed("Local", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				enableFirewall,
				onFrontends(func(to string) step { return filtered("outside", to) }),
			},
		},
		{
			covers: []int{122}, summary: "with INPUT policy DROP health checks pass in iptables mode",
			cluster: []string{
				loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  externalTrafficPolicy: Local, healthCheckNodePort: 30000`, "1.2.3.4"),
				slice("web", "80", "10.180.0.1 A"),
			},
			pods: []string{"node 30000/tcp 30001/tcp"},
			steps: []step{
				reach("outside", "192.168.0.2:30000", original, "192.168.0.2:30000"),
				enableFirewall,
				when(usesIptables, reach("outside", "192.168.0.2:30000", original, "192.168.0.2:30000")).
					otherwise(filtered("outside", "192.168.0.2:30000")),
				filtered("outside", "192.168.0.2:30001"),
				apply(exposed("Cluster", "10.180.0.1 A")...),
				filtered("outside", "192.168.0.2:30000"),
			},
		},
	}
}

// rollingUpdate replaces the pod of each node, first the one on node B. On node A the old pod
// terminates before the new one exists.
func rollingUpdate() []step {
	to := func(endpoints ...string) step { return apply(slice("web", "80", endpoints...)) }
	return []step{
		to("10.180.0.1 A", "10.180.1.1 B", "10.180.1.2 B 000"),
		to("10.180.0.1 A", "10.180.1.1 B", "10.180.1.2 B"),
		to("10.180.0.1 A", "10.180.1.1 B 011", "10.180.1.2 B"),
		to("10.180.0.1 A", "10.180.1.1 B 001", "10.180.1.2 B"),
		dropNew("10.180.1.1"),
		to("10.180.0.1 A", "10.180.1.2 B"),
		to("10.180.0.1 A 011", "10.180.1.2 B"),
		to("10.180.0.1 A 011", "10.180.1.2 B", "10.180.0.2 A 000"),
		to("10.180.0.1 A 011", "10.180.1.2 B", "10.180.0.2 A 110"),
		to("10.180.0.1 A 001", "10.180.1.2 B", "10.180.0.2 A 110"),
		dropNew("10.180.0.1"),
		to("10.180.1.2 B", "10.180.0.2 A 110"),
	}
}
