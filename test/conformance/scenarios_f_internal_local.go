//go:build linux

package conformance

// internalLocals is section 7.F: internalTrafficPolicy Local.
func internalLocals() []scenario {
	return append(internalLocal(), internalAndExternal()...)
}

// internal is a Service with an internalTrafficPolicy.
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
			covers: []int{123}, summary: "under Cluster a pod reaches all backends",
			cluster: internal("Cluster", spread...),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80")},
		},
		{
			covers: []int{124}, summary: "under Local a pod reaches the local backend",
			cluster: internal("Local", spread...),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80")},
		},
		{
			covers: []int{125}, summary: "under Local a pod reaches both local backends",
			cluster: internal("Local", "10.0.1.1 A", "10.0.1.2 A", "10.0.1.3 B"),
			steps:   []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80")},
		},
		{
			covers: []int{126}, summary: "without a local backend all clients are dropped",
			cluster: internal("Local", "10.0.1.2 B", "10.0.1.3 B"),
			steps:   []step{dropped(aPod, to), dropped("node", to), dropped("outside", to)},
		},
		{
			covers: []int{127}, summary: "without any backend all clients are refused",
			cluster: internal("Local", "10.0.1.2 B", "10.0.1.3 B"),
			steps: []step{
				dropped(aPod, to),
				remove("EndpointSlice/web"),
				refused(aPod, to), refused("node", to), refused("outside", to),
			},
		},
		{
			covers: []int{128}, summary: "the node reaches the local backend, and is dropped without one",
			cluster: internal("Local", "10.0.1.1 A", "10.0.1.2 B"),
			steps: []step{
				reach("node", to, masqueraded, "10.0.1.1:80"),
				apply(slice("web", "80", "10.0.1.2 B")),
				dropped("node", to),
			},
		},
		{
			covers:  []int{129},
			summary: "a pod reaches a hostNetwork backend on its node, and is dropped if that is on another node",
			cluster: internal("Local", "192.168.0.2 A", "192.168.0.3 B"),
			steps: []step{
				reach(aPod, to, original, "192.168.0.2:80"),
				apply(slice("web", "80", "192.168.0.3 B")),
				dropped(aPod, to),
			},
		},
		{
			covers: []int{132}, summary: "the default policy is Cluster",
			cluster: []string{
				service("web", `clusterIP: 172.30.1.1, ports: [{port: 80}]`),
				slice("web", "80", spread...),
			},
			steps: []step{reach(aPod, to, original, "10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80")},
		},
		{
			covers: []int{124, 126}, summary: "the local backend is deleted and comes back",
			cluster: internal("Local", spread...),
			steps: []step{
				apply(slice("web", "80", spread[1:]...)), dropped(aPod, to),
				apply(slice("web", "80", spread...)), reach(aPod, to, original, "10.0.1.1:80"),
				apply(internal("Cluster", spread[1:]...)...), reach(aPod, to, original, "10.0.1.2:80", "10.0.1.3:80"),
			},
		},
	}
}

// internalAndExternal are Services with both policies.
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
			covers: []int{130}, summary: "the policy does not apply to NodePorts", cluster: cluster("Cluster"),
			steps: []step{
				dropped(aPod, "172.30.1.1:80"),
				reach("outside", "192.168.0.2:3001", masqueraded, "10.0.1.2:80"),
				reach(aPod, "192.168.0.2:3001", masqueraded, "10.0.1.2:80"),
			},
		},
		{
			covers: []int{131}, summary: "both policies Local, no local backend", cluster: cluster("Local"),
			steps: []step{
				dropped(aPod, "172.30.1.1:80"),
				reach(aPod, "1.2.3.4:80", original, "10.0.1.2:80"),
				reach("node", "1.2.3.4:80", masqueraded, "10.0.1.2:80"),
				dropped("outside", "1.2.3.4:80"),
			},
		},
	}
}
