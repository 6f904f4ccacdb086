//go:build linux

package conformance

import "slices"

// externalLocals is section 7.E: externalTrafficPolicy Local.
func externalLocals() []scenario {
	all := append(externalLocal(), localOverUDPAndSCTP()...)
	return slices.Concat(all, localOnOtherNodes(), localChanges(), firewalled())
}

// exposed is a Service with an address of every kind, under a policy for what
// comes from outside. See onFronts.
func exposed(policy string, endpoints ...string) []string {
	return []string{
		loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  externalIPs: [192.168.99.11], externalTrafficPolicy: `+policy, "1.2.3.4"),
		slice("web", "80", endpoints...),
	}
}

// everyProtocol is exposed on TCP, UDP and SCTP.
func everyProtocol(policy string, endpoints ...string) []string {
	return []string{
		loadBalancer("web", `clusterIP: 172.30.0.41, externalIPs: [192.168.99.11], ports: [
  {name: t, port: 80, nodePort: 3001},
  {name: u, port: 80, nodePort: 3001, protocol: UDP},
  {name: s, port: 80, nodePort: 3001, protocol: SCTP}], externalTrafficPolicy: `+policy, "1.2.3.4"),
		slice("web", "t:80 u:80/udp s:80/sctp", endpoints...),
	}
}

// onFronts looks at each address that exposed has for the outside.
func onFrontends(look func(to string) step) step {
	return sequence(look("192.168.99.11:80"), look("1.2.3.4:80"), look("192.168.0.2:3001"))
}

func externalLocal() []scenario {
	const here, elsewhere = "10.180.2.1:80", "10.180.0.1:80"
	both := exposed("Local", "10.180.0.1 B", "10.180.2.1 A")
	remote := exposed("Local", "10.180.0.1 B")
	return []scenario{
		{
			covers: []int{106}, summary: "pod to ClusterIP reaches all", cluster: both,
			steps: []step{reach(aPod, "172.30.0.41:80", original, here, elsewhere)},
		},
		{
			covers: []int{107}, summary: "pod to all other addresses reaches all too", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach(aPod, to, original, here, elsewhere) })},
		},
		{
			covers: []int{108}, summary: "the outside reaches what is on the node, which sees it", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach("outside", to, original, here) })},
		},
		{
			covers: []int{109}, summary: "the node itself reaches all", cluster: both,
			steps: []step{onFrontends(func(to string) step { return reach("node", to, masqueraded, here, elsewhere) })},
		},
		{
			covers: []int{110}, summary: "nothing on the node: the outside is dropped", cluster: remote,
			steps: []step{onFrontends(func(to string) step { return dropped("outside", to) })},
		},
		{
			covers: []int{111}, summary: "nothing on the node: its pods and itself reach the others", cluster: remote,
			steps: []step{onFrontends(func(to string) step {
				return sequence(reach(aPod, to, original, elsewhere), reach("node", to, masqueraded, elsewhere))
			})},
		},
		{
			covers: []int{118}, summary: "the policy is none of a Service that is not for the outside",
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
			covers: []int{119}, summary: "hints for another zone do not count on the node",
			cluster: exposed("Local", "10.180.0.1 B zones=a", "10.180.2.1 A zones=b", "10.180.2.2 A zones=b"),
			steps: []step{onFrontends(func(to string) step {
				return reach("outside", to, original, "10.180.2.1:80", "10.180.2.2:80")
			})},
		},
	}
}

// localOverUDPAndSCTP has what externalLocal has. Nothing changes in it: a new
// client on the port of an old one would be taken for that one.
func localOverUDPAndSCTP() []scenario {
	const here, elsewhere = "10.180.2.1:80", "10.180.0.1:80"
	both := func(look func(to string) step) step {
		return onFrontends(func(to string) step { return sequence(look(to+"/udp"), look(to+"/sctp")) })
	}
	return []scenario{
		{
			covers: []int{107, 108, 109}, summary: "over UDP and SCTP too", cluster: everyProtocol("Local", "10.180.0.1 B", "10.180.2.1 A"),
			steps: []step{both(func(to string) step {
				return sequence(
					reach(aPod, to, original, here, elsewhere),
					reach("outside", to, original, here),
					reach("node", to, masqueraded, here, elsewhere),
				)
			})},
		},
		{
			covers: []int{110, 111}, summary: "over UDP and SCTP too", cluster: everyProtocol("Local", "10.180.0.1 B"),
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

// localOnOtherNodes is about clients that are on another node, or are the node.
func localOnOtherNodes() []scenario {
	return []scenario{
		{
			covers: []int{112}, summary: "a pod of another node, seen as such, reaches what is elsewhere",
			cluster: exposed("Local", "203.0.113.2"),
			steps:   []step{reach("10.180.1.9@B", "192.168.0.2:3001", original, "203.0.113.2:80")},
		},
		{
			covers: []int{112}, summary: "a pod of another node, not known as one, is dropped",
			cluster: exposed("Local", "203.0.113.2"), settings: settings{detector: "NodeCIDR"},
			steps: []step{
				dropped("10.180.1.9@B", "192.168.0.2:3001"),
				reach("10.180.0.9", "192.168.0.2:3001", original, "203.0.113.2:80"),
			},
		},
		{
			covers: []int{113}, summary: "another node reaches what is on this node, which sees it",
			cluster: exposed("Local", "10.180.2.1 A", "10.180.0.1 B"),
			steps:   []step{reach("node-b", "192.168.0.2:3001", original, "10.180.2.1:80")},
		},
		{
			covers: []int{114}, summary: "the node reaches what is elsewhere through its own NodePort",
			cluster: exposed("Local", "10.180.0.1 B"),
			steps:   []step{reach("node", "192.168.0.2:3001", masqueraded, "10.180.0.1:80")},
		},
		{
			covers: []int{115}, summary: "another node gets no answer of one without a backend",
			cluster: exposed("Local", "10.180.0.1 B"),
			steps:   []step{dropped("node-b", "192.168.0.2:3001")},
		},
	}
}

// localChanges is about the policy and the endpoints changing. That the health
// check port comes and goes with the policy is not looked at here.
func localChanges() []scenario {
	all := onFrontends(func(to string) step {
		return reach("outside", to, masqueraded, "10.180.0.1:80", "10.180.2.1:80")
	})
	here := onFrontends(func(to string) step { return reach("outside", to, original, "10.180.2.1:80") })
	endpoints := []string{"10.180.0.1 B", "10.180.2.1 A"}
	return []scenario{
		{
			covers: []int{116, 117}, summary: "the policy may change to Cluster and back",
			cluster: exposed("Local", endpoints...),
			steps: []step{
				here,
				apply(exposed("Cluster", endpoints...)...), all,
				apply(exposed("Local", endpoints...)...), here,
			},
		},
		{
			covers: []int{116, 117}, summary: "a node without a backend has some under Cluster only",
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
			covers: []int{120}, summary: "an update of the pods breaks no connection on the node",
			cluster: exposed("Local", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				uninterrupted("outside", "1.2.3.4:80", rollingUpdate()...),
				reach("outside", "1.2.3.4:80", original, "10.180.0.2:80"),
			},
		},
		{
			covers: []int{121}, summary: "under the policy Cluster neither",
			cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				uninterrupted("outside", "1.2.3.4:80", rollingUpdate()...),
				reach("outside", "1.2.3.4:80", masqueraded, "10.180.0.2:80", "10.180.1.2:80"),
			},
		},
	}
}

// firewalled is a node whose own firewall lets nothing in that no rule accepts.
// In iptables mode there are such rules, for what has another source now; it is
// not needed otherwise that anything accepts it before.
func firewalled() []scenario {
	const here, elsewhere = "10.180.0.1:80", "10.180.1.1:80"
	return []scenario{
		{
			covers: []int{122}, summary: "a firewall that forwards nothing: what is masqueraded passes in iptables mode",
			cluster: exposed("Cluster", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				enableFirewall,
				onFrontends(func(to string) step {
					return when(inIptablesMode,
						reach("outside", to, masqueraded, here, elsewhere), reach(aPod, to, masqueraded, here, elsewhere),
					).otherwise(filtered("outside", to), filtered(aPod, to))
				}),
				filtered(aPod, inside), // others have to accept what has its own source
				remove("EndpointSlice/web"),
				refused("outside", outwards), refused(aPod, inside),
			},
		},
		{
			covers: []int{122}, summary: "a firewall that forwards nothing: what keeps its source does not pass",
			cluster: exposed("Local", "10.180.0.1 A", "10.180.1.1 B"),
			steps: []step{
				enableFirewall,
				onFrontends(func(to string) step { return filtered("outside", to) }),
			},
		},
		{
			covers: []int{122}, summary: "a firewall that lets nothing in: health checks pass in iptables mode",
			cluster: []string{
				loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  externalTrafficPolicy: Local, healthCheckNodePort: 30000`, "1.2.3.4"),
				slice("web", "80", "10.180.0.1 A"),
			},
			pods: []string{"node 30000/tcp 30001/tcp"},
			steps: []step{
				reach("outside", "192.168.0.2:30000", original, "192.168.0.2:30000"),
				enableFirewall,
				when(inIptablesMode, reach("outside", "192.168.0.2:30000", original, "192.168.0.2:30000")).
					otherwise(filtered("outside", "192.168.0.2:30000")),
				filtered("outside", "192.168.0.2:30001"),
				apply(exposed("Cluster", "10.180.0.1 A")...),
				filtered("outside", "192.168.0.2:30000"),
			},
		},
	}
}

// rollingUpdate replaces the one pod of each node, that of node B first; the one
// of node A has nobody beside it when it has to go.
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
