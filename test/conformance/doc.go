// Package conformance is one table of scenarios that every data plane runs
// through, with real packets: a small cluster, and what clients of each kind see
// of it. The numbers are those of the behaviour to reproduce, S-1 to S-312;
// uncovered.txt lists those without a scenario, and why.
//
// A scenario is run in both IP families: it is written with IPv4 addresses, which
// are translated as text (translate.go), and each run has a lab of its own.
//
//	{
//		covers: []int{21}, says: "pod to ClusterIP keeps the client's address",
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
// The cluster is Kubernetes YAML, one document per string; service, loadBalancer
// and slice (documents.go) write what is the same each time, anything else is
// written out. The own Node, node-a in zone-a, and a ServiceCIDR 172.30.0.0/16
// are there already (base); a document of the same kind and name replaces them.
// Settings are the configuration: without any, pods are told by 10.0.0.0/8 and
// NodePorts are served where the mode of the plane has them by default.
//
// Every endpoint of a slice gets a pod that serves its ports, on the node the
// slice names, before the proxy hears of it; addresses of nodes and of the
// outside are served there. Other servers are listed in pods. Clients come into
// being when they are named: "10.180.0.2" is a pod on node A, "10.180.1.9@B" one
// on node B; "node" is node A itself, "node-b" node B, "outside" and "blocked"
// are two addresses outside of the cluster.
//
// Steps are in steps.go (what clients see, changes) and flows.go (connections
// that are kept). The important ones:
//
//   - reach: every backend named answers, nobody else, and sees that source
//   - evenly: and each has its share
//   - refused: ICMP port unreachable at once; dropped: silence, and nothing leaves
//     the node; untouched: as if there were no proxy
//   - apply, remove: change the cluster and wait until the kernel has it; what
//     comes after must hold at once. soon(step) waits for what has no such end
//   - open, ask, unanswered: a connection that lasts over changes
//
// Where modes differ the scenario says so, and no plane is left out. What several
// scenarios need is in nature.go, by what the client does: otherPort, unallocated,
// unlisted, unserved, ownEmpty, pinged look for what the behaviour to reproduce
// says of the plane's mode. Anything else is written out:
//
//	on(inIptablesMode, reach(...)).otherwise(untouched(...))
//
// A step is a func(*env) error; what only one scenario needs is written there.
// The bounds of everything random are in stats.go: a whole run fails for nothing
// less than once in a million.
//
// To add a section: a file scenarios_x_topic.go with a function that returns the
// list, its name in scenarios(), and its numbers out of uncovered.txt. Where we
// differ from kube-proxy on purpose, the scenario says what we do, and that.
package conformance
