//go:build linux

package conformance

// terminatings is section 7.G: terminating endpoints. The three digits after an endpoint are
// ready, serving, terminating.
func terminatings() []scenario {
	all := append(terminatingLocal(), terminatingCluster()...)
	return append(append(all, conditions()...), terminatingChanges()...)
}

// inside and outwards are the ClusterIP and the VIP of exposed.
const inside, outwards = "172.30.0.41:80", "1.2.3.4:80"

func terminatingLocal() []scenario {
	mixed := exposed("Local", "10.180.0.1 A 110", "10.180.0.2 A 110", "10.180.0.3 A 011",
		"10.180.0.4 A 001", "10.180.1.1 B 110")
	leaving := exposed("Local", "10.180.0.1 A 011", "10.180.0.2 A 011", "10.180.0.3 A 001", "10.180.1.1 B 110")
	remote := exposed("Local", "10.180.1.1 B 011")
	return []scenario{
		{
			covers: []int{133}, summary: "external Local: pod to ClusterIP reaches all ready endpoints", cluster: mixed,
			steps: []step{reach(aPod, inside, original, "10.180.0.1:80", "10.180.0.2:80", "10.180.1.1:80")},
		},
		{
			covers: []int{134}, summary: "external Local: outside reaches the ready local endpoints", cluster: mixed,
			steps: []step{reach("outside", outwards, original, "10.180.0.1:80", "10.180.0.2:80")},
		},
		{
			covers: []int{135}, summary: "external Local: pods reach the only ready endpoint, on another node", cluster: leaving,
			steps: []step{reach(aPod, inside, original, "10.180.1.1:80"), reach(aPod, outwards, original, "10.180.1.1:80")},
		},
		{
			covers: []int{136}, summary: "external Local: outside reaches serving terminating local endpoints", cluster: leaving,
			steps: []step{onFrontends(func(to string) step {
				return reach("outside", to, original, "10.180.0.1:80", "10.180.0.2:80")
			})},
		},
		{
			covers: []int{137}, summary: "external Local: a pod reaches the last serving terminating endpoint", cluster: remote,
			steps: []step{reach(aPod, inside, original, "10.180.1.1:80"), reach(aPod, outwards, original, "10.180.1.1:80")},
		},
		{
			covers: []int{138}, summary: "external Local: outside is dropped if the last serving terminating endpoint is remote",
			cluster: remote,
			steps:   []step{onFrontends(func(to string) step { return dropped("outside", to) })},
		},
		{
			covers: []int{139}, summary: "external Local: refused if no endpoint serves",
			cluster: exposed("Local", "10.180.0.1 A 001", "10.180.1.1 B 001"),
			steps: []step{
				refused(aPod, inside),
				onFrontends(func(to string) step { return sequence(refused("outside", to), refused(aPod, to)) }),
			},
		},
		{
			covers:  []int{145},
			summary: "internal Local: a serving terminating local endpoint is preferred to ready remote ones",
			cluster: internal("Local", "10.180.0.1 A 011", "10.180.1.1 B 110"),
			steps:   []step{reach(aPod, "172.30.1.1:80", original, "10.180.0.1:80")},
		},
		{
			covers: []int{136}, summary: "external Local: outside reaches a single serving terminating local endpoint",
			cluster: exposed("Local", "10.180.0.1 A 011"),
			steps:   []step{onFrontends(func(to string) step { return reach("outside", to, original, "10.180.0.1:80") })},
		},
	}
}

func terminatingCluster() []scenario {
	// both connects from a pod to the ClusterIP, and from outside to the external addresses.
	both := func(backends ...string) []step {
		return []step{
			reach(aPod, inside, original, backends...),
			onFrontends(func(to string) step { return reach("outside", to, masqueraded, backends...) }),
		}
	}
	none := []step{
		refused(aPod, inside),
		onFrontends(func(to string) step { return refused("outside", to) }),
	}
	fixtures := [][]string{
		{"10.180.0.1 A 110", "10.180.0.2 A 011", "10.180.1.1 B 110", "10.180.1.2 B 001"},
		{"10.180.0.1 A 011", "10.180.0.2 A 011", "10.180.1.1 B 011", "10.180.1.2 B 001"},
		{"10.180.1.1 B 011"},
		{"10.180.0.1 A 001", "10.180.1.1 B 001"},
	}
	gone := []step{remove("EndpointSlice/web"), sequence(none...)}
	for _, endpoints := range fixtures {
		gone = append(gone, apply(slice("web", "80", endpoints...)), remove("EndpointSlice/web"), sequence(none...))
	}
	return []scenario{
		{
			covers: []int{140}, summary: "external Cluster: only ready endpoints",
			cluster: exposed("Cluster", fixtures[0]...), steps: both("10.180.0.1:80", "10.180.1.1:80"),
		},
		{
			covers: []int{141}, summary: "external Cluster: all serving terminating endpoints if none is ready",
			cluster: exposed("Cluster", fixtures[1]...), steps: both("10.180.0.1:80", "10.180.0.2:80", "10.180.1.1:80"),
		},
		{
			covers: []int{142}, summary: "external Cluster: the last serving terminating endpoint may be remote",
			cluster: exposed("Cluster", fixtures[2]...), steps: both("10.180.1.1:80"),
		},
		{
			covers: []int{143}, summary: "external Cluster: refused if no endpoint serves",
			cluster: exposed("Cluster", fixtures[3]...), steps: none,
		},
		{
			covers: []int{144}, summary: "a Service without slices refuses, whatever endpoints it had",
			cluster: exposed("Cluster", fixtures[0]...), steps: gone,
		},
		{
			covers: []int{144}, summary: "a Service without slices refuses under external Local too",
			cluster: exposed("Local", fixtures[2]...),
			steps: []step{
				onFrontends(func(to string) step { return dropped("outside", to) }), remove("EndpointSlice/web"), sequence(none...),
			},
		},
	}
}

func conditions() []scenario {
	const nodePort = "192.168.0.2:3001"
	cluster := func(publish string, endpoints ...string) []string {
		return []string{
			service("web", `type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}],
  publishNotReadyAddresses: `+publish),
			slice("web", "80", endpoints...),
		}
	}
	reused := func(endpoints ...string) scenario {
		return scenario{
			covers: []int{151}, summary: "a new pod reuses the address of an old one: " + endpoints[0],
			cluster: exposed("Cluster", append(endpoints, "10.0.1.2 B 110")...),
			steps: []step{
				reach(aPod, inside, original, "10.0.1.1:80", "10.0.1.2:80"),
				apply(slice("web", "80", "10.0.1.1 A 110", "10.0.1.2 B 110")),
				reach(aPod, inside, original, "10.0.1.1:80", "10.0.1.2:80"),
			},
		}
	}
	return []scenario{
		{
			covers: []int{146}, summary: "publishNotReadyAddresses: reachable until the endpoint is deleted",
			cluster: cluster("true", "10.180.0.1 A 100", "10.180.1.1 B 101"),
			steps: []step{
				reach(aPod, inside, original, "10.180.0.1:80", "10.180.1.1:80"),
				reach("outside", nodePort, masqueraded, "10.180.0.1:80", "10.180.1.1:80"),
				apply(slice("web", "80", "10.180.1.1 B 101")),
				reach(aPod, inside, original, "10.180.1.1:80"),
				remove("EndpointSlice/web"),
				refused(aPod, inside), refused("outside", nodePort),
			},
		},
		{
			covers: []int{147}, summary: "neither ready nor serving: refused",
			cluster: cluster("false", "10.180.0.1 A 000", "10.180.1.1 B 001"),
			steps:   []step{refused(aPod, inside), refused("outside", nodePort)},
		},
		{
			covers: []int{147}, summary: "serving has an effect only with terminating",
			cluster: cluster("false", "10.180.0.1 A 010"),
			steps: []step{
				refused(aPod, inside), refused("outside", nodePort),
				apply(slice("web", "80", "10.180.0.1 A 010", "10.180.1.1 B 011")),
				reach(aPod, inside, original, "10.180.1.1:80"),
			},
		},
		{
			covers: []int{148}, summary: "without conditions: ready",
			cluster: cluster("false", "10.180.0.1 A"),
			steps:   []step{reach(aPod, inside, original, "10.180.0.1:80")},
		},
		{
			covers: []int{149}, summary: "ready and not serving: ready",
			cluster: cluster("false", "10.180.0.1 A 100", "10.180.1.1 B 110"),
			steps:   []step{reach(aPod, inside, original, "10.180.0.1:80", "10.180.1.1:80")},
		},
		reused("10.0.1.1 A 011", "10.0.1.1 A 110"),
		reused("10.0.1.1 A 110", "10.0.1.1 A 011"),
		reused("10.0.1.1 A 001", "10.0.1.1 A 110"),
	}
}

// terminatingChanges are connections that stay open while their endpoint is deleted.
func terminatingChanges() []scenario {
	kept := func(from, to, policy string, seen source) scenario {
		return scenario{
			covers: []int{152}, summary: "a connection outlives its endpoint, " + from + " under " + policy,
			cluster: exposed(policy, "10.180.0.1 A"),
			steps: []step{
				open("old", from, to, "10.180.0.1:80"),
				apply(slice("web", "80", "10.180.0.1 A 011", "10.180.0.2 A")),
				send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
				apply(slice("web", "80", "10.180.0.1 A 001", "10.180.0.2 A")),
				send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
				apply(slice("web", "80", "10.180.0.2 A")),
				beyondTimers, send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
				remove("EndpointSlice/web"),
				send("old", "10.180.0.1:80"), refused(from, to),
			},
		}
	}
	return []scenario{
		kept(aPod, inside, "Cluster", original),
		kept("outside", outwards, "Cluster", masqueraded),
		kept("outside", outwards, "Local", original),
	}
}
