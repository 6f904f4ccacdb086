//go:build linux

package conformance

// terminatings is section 7.G: endpoints on their way out. Three digits after
// an endpoint are ready, serving, terminating.
func terminatings() []scenario {
	all := append(terminatingLocal(), terminatingCluster()...)
	return append(append(all, conditions()...), terminatingChanges()...)
}

// inside and outwards are the two sides of exposed.
const inside, outwards = "172.30.0.41:80", "1.2.3.4:80"

func terminatingLocal() []scenario {
	mixed := exposed("Local", "10.180.0.1 A 110", "10.180.0.2 A 110", "10.180.0.3 A 011", "10.180.0.4 A 001", "10.180.1.1 B 110")
	leaving := exposed("Local", "10.180.0.1 A 011", "10.180.0.2 A 011", "10.180.0.3 A 001", "10.180.1.1 B 110")
	remote := exposed("Local", "10.180.1.1 B 011")
	return []scenario{
		{
			covers: []int{133}, summary: "external Local: pod to ClusterIP reaches what is ready", cluster: mixed,
			steps: []step{reach(aPod, inside, original, "10.180.0.1:80", "10.180.0.2:80", "10.180.1.1:80")},
		},
		{
			covers: []int{134}, summary: "external Local: the outside reaches what is ready on the node", cluster: mixed,
			steps: []step{reach("outside", outwards, original, "10.180.0.1:80", "10.180.0.2:80")},
		},
		{
			covers: []int{135}, summary: "external Local: the only ready one is on another node, for pods", cluster: leaving,
			steps: []step{reach(aPod, inside, original, "10.180.1.1:80"), reach(aPod, outwards, original, "10.180.1.1:80")},
		},
		{
			covers: []int{136}, summary: "external Local: the outside reaches what still serves on the node", cluster: leaving,
			steps: []step{onFrontends(func(to string) step {
				return reach("outside", to, original, "10.180.0.1:80", "10.180.0.2:80")
			})},
		},
		{
			covers: []int{137}, summary: "external Local: a pod reaches the last that still serves", cluster: remote,
			steps: []step{reach(aPod, inside, original, "10.180.1.1:80"), reach(aPod, outwards, original, "10.180.1.1:80")},
		},
		{
			covers: []int{138}, summary: "external Local: the last that still serves is elsewhere", cluster: remote,
			steps: []step{onFrontends(func(to string) step { return dropped("outside", to) })},
		},
		{
			covers: []int{139}, summary: "external Local: none serves",
			cluster: exposed("Local", "10.180.0.1 A 001", "10.180.1.1 B 001"),
			steps: []step{
				refused(aPod, inside),
				onFrontends(func(to string) step { return sequence(refused("outside", to), refused(aPod, to)) }),
			},
		},
		{
			covers: []int{145}, summary: "internal Local: the last on the node still serves, others are ready elsewhere",
			cluster: internal("Local", "10.180.0.1 A 011", "10.180.1.1 B 110"),
			steps:   []step{reach(aPod, "172.30.1.1:80", original, "10.180.0.1:80")},
		},
		{
			covers: []int{136}, summary: "external Local: nothing but one that still serves, where a health check fails",
			cluster: exposed("Local", "10.180.0.1 A 011"),
			steps:   []step{onFrontends(func(to string) step { return reach("outside", to, original, "10.180.0.1:80") })},
		},
	}
}

func terminatingCluster() []scenario {
	// both looks from a pod at the ClusterIP and from outside at the others.
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
			covers: []int{140}, summary: "external Cluster: only what is ready",
			cluster: exposed("Cluster", fixtures[0]...), steps: both("10.180.0.1:80", "10.180.1.1:80"),
		},
		{
			covers: []int{141}, summary: "external Cluster: all that still serves, when nothing is ready",
			cluster: exposed("Cluster", fixtures[1]...), steps: both("10.180.0.1:80", "10.180.0.2:80", "10.180.1.1:80"),
		},
		{
			covers: []int{142}, summary: "external Cluster: the last that still serves may be elsewhere",
			cluster: exposed("Cluster", fixtures[2]...), steps: both("10.180.1.1:80"),
		},
		{
			covers: []int{143}, summary: "external Cluster: none serves",
			cluster: exposed("Cluster", fixtures[3]...), steps: none,
		},
		{
			covers: []int{144}, summary: "without its slice a Service refuses, whatever was before",
			cluster: exposed("Cluster", fixtures[0]...), steps: gone,
		},
		{
			covers: []int{144}, summary: "without its slice a Service refuses under external Local too",
			cluster: exposed("Local", fixtures[2]...),
			steps:   []step{onFrontends(func(to string) step { return dropped("outside", to) }), remove("EndpointSlice/web"), sequence(none...)},
		},
	}
}

// conditions is about what the conditions of an endpoint say.
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
			covers: []int{151}, summary: "an address of an old pod that a new one has: " + endpoints[0],
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
			covers: []int{146}, summary: "publishNotReadyAddresses: reachable until the pod is gone",
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
			covers: []int{147}, summary: "serving counts only with terminating",
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

// terminatingChanges is about connections that were there before.
func terminatingChanges() []scenario {
	kept := func(from, to, policy string, seen source) scenario {
		return scenario{
			covers: []int{152}, summary: "a connection outlasts its endpoint, " + from + " under " + policy,
			cluster: exposed(policy, "10.180.0.1 A"),
			steps: []step{
				open("old", from, to, "10.180.0.1:80"),
				apply(slice("web", "80", "10.180.0.1 A 011", "10.180.0.2 A")),
				send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
				apply(slice("web", "80", "10.180.0.1 A 001", "10.180.0.2 A")),
				send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
				apply(slice("web", "80", "10.180.0.2 A")),
				send("old", "10.180.0.1:80"), reach(from, to, seen, "10.180.0.2:80"),
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
