// Package conformance is a table of scenarios that every data plane must pass with real packets. A scenario is a
// small cluster and the connections that its clients make. S-1 to S-312 number the behaviours of kube-proxy to
// reproduce, later numbers are behaviours of Sluice; uncovered.txt lists the behaviours without a scenario, and the
// reasons.
//
// Each scenario runs in both IP families: it is written with IPv4 addresses, which translate.go replaces in its text.
// Both variants run one after another in one lab, with the same pods. Between them the plane removes everything, and
// nothing of it may remain on the node (world.go). A step that leaves something behind calls env.alters: then the next
// variant has a lab of its own.
//
// Two environment variables select scenarios (choice.go). By default iptables-legacy runs only scenarios that cover
// its shapes of rules or depend on the variant of iptables; with FULL=1 it runs all. With SCENARIOS=kernel each plane
// runs only scenarios whose result another kernel may change. Scenarios that are not selected are not reported.
//
//	{
//		covers: []int{21}, summary: "pod to ClusterIP keeps the client's address",
//		cluster: []string{
//			service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
//			slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B"),
//		},
//		steps: []step{
//			reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:8080", "10.180.1.1:8080"),
//			apply(slice("web", "8080", "10.180.1.1 B")),
//			reach("node", "172.30.0.41:80", masqueraded, "10.180.1.1:8080"),
//		},
//	},
//
// The cluster is Kubernetes YAML, one document per string. The functions service, loadBalancer and slice (documents.go)
// write the common objects; all others are written out. Every cluster has the Node of the proxy, node-a in zone-a, and
// a ServiceCIDR 172.30.0.0/16 (base); a document of the same kind and name replaces them. Settings are the
// configuration of the proxy. By default it recognizes pods by 10.0.0.0/8, and serves NodePorts on the default
// addresses of the proxy mode.
//
// Each endpoint of a slice gets a pod on the node that the slice names. The pod listens on the ports of the slice
// before the proxy receives the slice. An endpoint with the address of a node or of the outside host is served there.
// The field pods lists further servers. Clients are created when a step names them: "10.180.0.2" is a pod on node A,
// "10.180.1.9@B" a pod on node B, "node" is node A itself, "node-b" is node B, and "outside" and "blocked" are two
// addresses outside the cluster.
//
// Steps are in steps.go (connections of clients, changes) and flows.go (connections
// that stay open). The most important ones:
//
//   - reach: exactly the named backends answer, and see the given source address
//   - evenly: the same, and each backend gets its share of the connections
//   - refused: ICMP port unreachable at once; dropped: no answer, and no packet leaves
//     the node; untouched: as if there were no proxy
//   - apply, remove: change the cluster and wait until the change is in the kernel, so
//     that the next step must hold at once. soon(step) retries a step for effects
//     without such an event
//   - open, send, unanswered: a connection that stays open during changes
//
// Where proxy modes differ the scenario has the behaviour of each, and no plane skips it. Differences that several
// scenarios share are fields of Traits with a step of the same name: unknownPort, unallocated, emptyVIPUnlisted,
// emptyNodePortUnserved, emptyVIPFromNode, pingClusterIP. Others are written out:
//
//	when(inIptablesMode, reach(...)).otherwise(untouched(...))
//
// A step is a func(*env) error; a step of one scenario only is written there. The bounds for random results are in
// test/lab/stats.go: a correct proxy fails a whole run less than once in a million.
//
// To add a section: write a file scenarios_x_topic.go with a function that returns the list, add the function to
// scenarios(), and delete its numbers from uncovered.txt. Where Sluice differs from kube-proxy on purpose, the summary
// of the scenario names the behaviour of kube-proxy.
package conformance
