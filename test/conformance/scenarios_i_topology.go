//go:build linux

package conformance

// topologies is section 7.I: hints of zones and nodes. The proxy runs on node-a in zone-a.
func topologies() []scenario {
	all := append(zoneHints(), nodeHints()...)
	return append(append(all, hintsOfOthers()...), topologyChanges()...)
}

// hinted is a scenario with hints of endpoints, and the backends that a pod must reach.
func hinted(number int, summary string, endpoints []string, backends ...string) scenario {
	return scenario{
		covers: []int{number}, summary: summary,
		cluster: exposed("Cluster", endpoints...),
		steps:   []step{reach(aPod, inside, original, backends...)},
	}
}

// onNode replaces the Node of the proxy.
func (s scenario) onNode(document string) scenario {
	s.cluster = append([]string{document}, s.cluster...)
	return s
}

func zoneHints() []scenario {
	spread := []string{"10.180.0.1 A zones=a", "10.180.1.1 B zones=b", "10.180.1.2 C zones=c", "10.180.1.3 B zones=a"}
	const a1, b1, c1, a2 = "10.180.0.1:80", "10.180.1.1:80", "10.180.1.2:80", "10.180.1.3:80"
	return []scenario{
		hinted(164, "backends hinted to this zone", spread, a1, a2),
		hinted(165, "all backends, if one has no hint",
			[]string{"10.180.0.1 A zones=a", "10.180.1.1 B zones=b", "10.180.1.2 C", "10.180.1.3 B zones=a"}, a1, b1, c1, a2),
		hinted(166, "all backends, if the zone label of the node is empty", spread, a1, b1, c1, a2).onNode(nodeA("")),
		hinted(166, "all backends, if the node has no zone label", spread, a1, b1, c1, a2).
			onNode(`{kind: Node, metadata: {name: node-a}}`),
		hinted(167, "all backends, if none is hinted to this zone", spread, a1, b1, c1, a2).onNode(nodeA("zone-d")),
		hinted(168, "backends of other zones, if those of this zone are not ready",
			[]string{"10.180.0.1 A 000 zones=a", "10.180.1.1 B zones=b", "10.180.1.2 C zones=c", "10.180.1.3 B 000 zones=a"},
			b1, c1),
		hinted(169, "the ready backend of this zone",
			[]string{"10.180.0.1 A 000 zones=a", "10.180.1.1 B zones=b", "10.180.1.2 C zones=c", "10.180.1.3 B zones=a"}, a2),
		hinted(169, "a missing hint of an endpoint that is not ready is ignored",
			[]string{"10.180.0.1 A 000", "10.180.1.1 B zones=b", "10.180.1.2 C zones=c", "10.180.1.3 B zones=a"}, a2),
		hinted(170, "hints with several zones, one of them this zone",
			[]string{"10.180.0.1 A zones=a,b,c", "10.180.1.1 B zones=b,c", "10.180.1.2 C zones=b,d", "10.180.1.3 B zones=c"},
			a1, b1, a2).
			onNode(nodeA("zone-c")),
		hinted(180, "all backends, if this zone has none", spread, a1, b1, c1, a2).onNode(nodeA("zone-e")),
	}
}

func nodeHints() []scenario {
	const a, b, c = "10.180.0.1:80", "10.180.1.1:80", "10.180.1.2:80"
	return []scenario{
		hinted(171, "the backend hinted to this node",
			[]string{"10.180.0.1 A nodes=A zones=a", "10.180.1.1 B nodes=B zones=a", "10.180.1.2 C nodes=C zones=b"}, a),
		hinted(171, "several backends hinted to this node, on any node",
			[]string{"10.180.0.1 A nodes=B", "10.180.1.1 B nodes=A,B", "10.180.1.2 C nodes=A"}, b, c),
		hinted(172, "backends of this zone, if none is hinted to this node",
			[]string{"10.180.0.1 A nodes=B zones=b", "10.180.1.1 B nodes=B zones=a", "10.180.1.2 C nodes=C zones=a"}, b, c),
		hinted(173, "backends of this zone, if one has no node hint",
			[]string{"10.180.0.1 A nodes=A zones=a", "10.180.1.1 B zones=a", "10.180.1.2 C nodes=C zones=b"}, a, b),
		hinted(174, "all backends, if one has no hint of any kind",
			[]string{"10.180.0.1 A nodes=A zones=a", "10.180.1.1 B nodes=B zones=a", "10.180.1.2 C"}, a, b, c),
	}
}

// hintsOfOthers are hints for clients outside, and hints of terminating endpoints.
func hintsOfOthers() []scenario {
	return []scenario{
		{
			covers: []int{175}, summary: "external Cluster: outside reaches backends hinted to this zone",
			cluster: exposed("Cluster", "10.180.0.1 A zones=b", "10.180.1.1 B zones=a", "10.180.1.2 C zones=a"),
			steps: []step{onFrontends(func(to string) step {
				return reach("outside", to, masqueraded, "10.180.1.1:80", "10.180.1.2:80")
			})},
		},
		{
			covers: []int{176}, summary: "external Local: outside reaches the local backend, pods those hinted to this zone",
			cluster: exposed("Local", "10.180.0.1 A zones=b", "10.180.1.1 B zones=a", "10.180.1.2 C zones=b"),
			steps: []step{onFrontends(func(to string) step {
				return sequence(
					reach("outside", to, original, "10.180.0.1:80"),
					reach(aPod, to, original, "10.180.1.1:80"),
					reach("node", to, masqueraded, "10.180.1.1:80"),
				)
			})},
		},
		hinted(177, "all serving terminating endpoints, without hints",
			[]string{"10.180.0.1 A 011", "10.180.1.1 B 011", "10.180.1.2 C 001"}, "10.180.0.1:80", "10.180.1.1:80"),
		hinted(177, "all serving terminating endpoints, with hints",
			[]string{"10.180.0.1 A 011 zones=a nodes=A", "10.180.1.1 B 011 zones=b nodes=B", "10.180.1.2 C 001 zones=a nodes=A"},
			"10.180.0.1:80", "10.180.1.1:80"),
	}
}

func topologyChanges() []scenario {
	all := []string{"10.180.0.1 A nodes=A zones=a", "10.180.1.1 B nodes=B zones=b", "10.180.1.2 C nodes=C zones=c"}
	return []scenario{
		{
			covers: []int{178}, summary: "the zone of the node changes",
			cluster: exposed("Cluster", "10.180.0.1 A zones=a", "10.180.1.1 B zones=b", "10.180.1.2 C zones=b"),
			steps: []step{
				reach(aPod, inside, original, "10.180.0.1:80"),
				apply(nodeA("zone-b")),
				reach(aPod, inside, original, "10.180.1.1:80", "10.180.1.2:80"),
				reach("outside", outwards, masqueraded, "10.180.1.1:80", "10.180.1.2:80"),
				apply(nodeA("zone-a")),
				reach(aPod, inside, original, "10.180.0.1:80"),
				remove("Node/node-a"),
				reach(aPod, inside, original, "10.180.0.1:80", "10.180.1.1:80", "10.180.1.2:80"),
			},
		},
		{
			covers: []int{179}, summary: "the local pod is deleted and replaced",
			cluster: exposed("Cluster", all...),
			steps: []step{
				reach(aPod, inside, original, "10.180.0.1:80"),
				uninterrupted(aPod, inside,
					apply(slice("web", "80", all[1:]...)),
					reach(aPod, inside, original, "10.180.1.1:80", "10.180.1.2:80"),
					apply(slice("web", "80", append([]string{"10.180.0.2 A nodes=A zones=a"}, all[1:]...)...)),
					reach(aPod, inside, original, "10.180.0.2:80"),
				),
			},
		},
	}
}
