//go:build linux

package conformance

// internalLocals is section 7.F: internalTrafficPolicy Local.
func internalLocals() []scenario {
	return append(internalLocal(), internalAndExternal()...)
}

// internal is a Service under a policy for what comes from inside.
func internal(policy string, endpoints ...string) []string {
	return []string{
		service("web", `clusterIP: 172.30.1.1, ports: [{port: 80}], internalTrafficPolicy: `+policy),
		slice("web", "80", endpoints...),
	}
}

func internalLocal() []scenario {
	const to = "172.30.1.1:80"
	spread := []string{"10.0.1.1 A", "10.0.1.2 B", "10.0.1.3 B"}
	return []scenario{
		{
			covers: []int{123}, summary: "under the policy Cluster a pod reaches all",
			cluster: internal("Cluster", spread...),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80")},
		},
		{
			covers: []int{124}, summary: "under the policy Local a pod reaches the one on its node",
			cluster: internal("Local", spread...),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80")},
		},
		{
			covers: []int{125}, summary: "and both if there are two",
			cluster: internal("Local", "10.0.1.1 A", "10.0.1.2 A", "10.0.1.3 B"),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80")},
		},
		{
			covers: []int{126}, summary: "with none on the node everybody is dropped",
			cluster: internal("Local", "10.0.1.2 B", "10.0.1.3 B"),
			steps:   []step{dropped(aPod, to), dropped("node", to), dropped("outside", to)},
		},
		{
			covers: []int{127}, summary: "with none anywhere everybody is refused",
			cluster: internal("Local", "10.0.1.2 B", "10.0.1.3 B"),
			steps: []step{
				dropped(aPod, to),
				remove("EndpointSlice/web"),
				refused(aPod, to), refused("node", to), refused("outside", to),
			},
		},
		{
			covers: []int{128}, summary: "the node reaches the one on it, and is dropped without",
			cluster: internal("Local", "10.0.1.1 A", "10.0.1.2 B"),
			steps: []step{
				reach("node", to, masqueraded, "10.0.1.1:80"),
				apply(slice("web", "80", "10.0.1.2 B")),
				dropped("node", to),
			},
		},
		{
			covers: []int{129}, summary: "a pod reaches the node itself, and is dropped if that is another node",
			cluster: internal("Local", "192.168.0.2 A", "192.168.0.3 B"),
			steps: []step{
				reach(aPod, to, original, "192.168.0.2:80"),
				apply(slice("web", "80", "192.168.0.3 B")),
				dropped(aPod, to),
			},
		},
		{
			covers: []int{132}, summary: "without a policy it is Cluster",
			cluster: []string{
				service("web", `clusterIP: 172.30.1.1, ports: [{port: 80}]`),
				slice("web", "80", spread...),
			},
			steps: []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80")},
		},
		{
			covers: []int{124, 126}, summary: "the one on the node may go and come back",
			cluster: internal("Local", spread...),
			steps: []step{
				apply(slice("web", "80", spread[1:]...)), dropped(aPod, to),
				apply(slice("web", "80", spread...)), reach(aPod, to, original, "10.0.1.1:80"),
				apply(internal("Cluster", spread[1:]...)...), reach(aPod, to, original, "10.0.1.2:80", "10.0.1.3:80"),
			},
		},
	}
}

// internalAndExternal is about the policy beside the one for the outside.
func internalAndExternal() []scenario {
	cluster := func(external string) []string {
		return []string{
			loadBalancer("web", `clusterIP: 172.30.1.1, ports: [{port: 80, nodePort: 3001}],
  internalTrafficPolicy: Local, externalTrafficPolicy: `+external, "1.2.3.4"),
			slice("web", "80", "10.0.1.2 B"),
		}
	}
	return []scenario{
		{
			covers: []int{130}, summary: "the policy is not for NodePorts", cluster: cluster("Cluster"),
			steps: []step{
				dropped(aPod, "172.30.1.1:80"),
				reach("outside", "192.168.0.2:3001", masqueraded, "10.0.1.2:80"),
				reach(aPod, "192.168.0.2:3001", masqueraded, "10.0.1.2:80"),
			},
		},
		{
			covers: []int{131}, summary: "both policies Local, nothing on the node", cluster: cluster("Local"),
			steps: []step{
				dropped(aPod, "172.30.1.1:80"),
				reach(aPod, "1.2.3.4:80", original, "10.0.1.2:80"),
				reach("node", "1.2.3.4:80", masqueraded, "10.0.1.2:80"),
				dropped("outside", "1.2.3.4:80"),
			},
		},
	}
}
