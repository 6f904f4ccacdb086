//go:build linux

package conformance

import "slices"

// restarts is section 7.O: robustness and restart.
func restarts() []scenario {
	return slices.Concat(restartsAlone(), interference(), otherPrograms())
}

// everyKind is a cluster with one of each kind of entry in the kernel.
func everyKind() []string {
	return []string{
		service("web", `type: NodePort, clusterIP: 172.30.0.41, externalIPs: [192.168.99.22],
  ports: [{name: t, port: 80, nodePort: 32000}, {name: u, port: 53, protocol: UDP},
    {name: s, port: 90, protocol: SCTP}]`),
		slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.1 A", "10.180.1.1 B"),
		service("sticky", `clusterIP: 172.30.0.42, ports: [{port: 80}], `+clientIP),
		slice("sticky", "8080", "10.180.0.1 A", "10.180.1.1 B"),
		loadBalancer("guarded", `clusterIP: 172.30.0.43, externalTrafficPolicy: Local,
  loadBalancerSourceRanges: [203.0.113.0/25], ports: [{port: 80, nodePort: 32001}]`, "192.168.99.1"),
		slice("guarded", "8080", "10.180.0.1 A", "10.180.1.1 B"),
		service("empty", `type: NodePort, clusterIP: 172.30.0.44, ports: [{port: 80, nodePort: 32002}]`),
		service("inside", `clusterIP: 172.30.0.45, internalTrafficPolicy: Local, ports: [{port: 80}]`),
		slice("inside", "8080", "10.180.1.1 B"),
	}
}

// everyKindWorks checks all Services of everyKind.
func everyKindWorks() step {
	const client, here, there = "10.180.0.2", "10.180.0.1:8080", "10.180.1.1:8080"
	return sequence(
		reach(client, "172.30.0.41:80", original, here, there),
		reach("outside", "192.168.0.2:32000", masqueraded, here, there),
		reach("outside", "192.168.99.22:80", masqueraded, here, there),
		reach("outside", "192.168.99.1:80", original, here),
		dropped("blocked", "192.168.99.1:80"),
		refused(client, "172.30.0.44:80"),
		dropped(client, "172.30.0.45:80"),
		unallocated(client, "172.30.0.50:80"),
		keepsBackend("client", client, "172.30.0.42:80", here, there),
	)
}

// restartsAlone are changes while no proxy runs, and restarts.
func restartsAlone() []scenario {
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{273}, summary: "Services work while the proxy is stopped, and changes are applied when it starts",
			cluster: everyKind(),
			steps: []step{
				everyKindWorks(),
				open("kept", client, vip, "10.180.0.1:8080", "10.180.1.1:8080"),
				uninterrupted(client, vip, uninterrupted("outside", "192.168.0.2:32000",
					stopProxy,
					everyKindWorks(),
					changeNoWait(slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.3 A"),
						service("new", `clusterIP: 172.30.0.46, ports: [{port: 80}]`)),
					everyKindWorks(),
					unallocated(client, "172.30.0.46:80"),
					startProxy,
					reach(client, vip, original, "10.180.0.3:8080"),
					refused(client, "172.30.0.46:80"),
				)),
				send("kept"),
			},
		},
		{
			covers: []int{274}, summary: "a restart without changes writes nothing, and keeps connections and affinity",
			cluster: append(everyKind(), service("last", `clusterIP: 172.30.0.48, ports: [{name: u, port: 53, protocol: UDP}]`)),
			steps: []step{
				requireInProcess,
				everyKindWorks(),
				open("tcp", client, vip, "10.180.0.1:8080", "10.180.1.1:8080"),
				open("udp", client, "172.30.0.41:53/udp", "10.180.0.1:53", "10.180.1.1:53"),
				when(servesSCTP, open("sctp", client, "172.30.0.41:90/sctp", "10.180.0.1:90", "10.180.1.1:90")).otherwise(),
				// The entry deleted by a later change shows that the restart is complete.
				uninterrupted(client, vip, uninterrupted("outside", "192.168.0.2:32000", times(3,
					changeNoWait(slice("last", "u:53/udp", "10.180.0.4 A")),
					soon(reach(client, "172.30.0.48:53/udp", original, "10.180.0.4:53")),
					open("last", client, "172.30.0.48:53/udp", "10.180.0.4:53"),
					keepsSCTP(entriesAfter(sequence(restartWithoutChange, removeNoWait("EndpointSlice/last")),
						entryDeleted("last"), entryKept("tcp"), entryKept("udp"))),
				))),
				send("tcp"), send("udp"), when(servesSCTP, send("sctp")).otherwise(),
				everyKindWorks(),
			},
		},
		{
			covers: []int{274}, summary: "a restart with Services changed brings all up to date, with no moment without rules",
			cluster: append(everyKind(), service("old", `clusterIP: 172.30.0.46, ports: [{port: 80}], `+clientIP),
				slice("old", "8080", "10.180.0.4 A")),
			steps: []step{
				everyKindWorks(),
				reach(client, "172.30.0.46:80", original, "10.180.0.4:8080"),
				uninterrupted(client, vip, uninterrupted("outside", "192.168.0.2:32000",
					stopForNext,
					removeNoWait("Service/old", "EndpointSlice/old"),
					changeNoWait(
						service("new", `clusterIP: 172.30.0.47, ports: [{port: 80}]`), slice("new", "8080", "10.180.0.5 A"),
						slice("inside", "8080", "10.180.0.5 A"),
						slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.1 A", "10.180.1.3 B"),
					),
					startProxy,
				)),
				unallocated(client, "172.30.0.46:80"),
				reach(client, "172.30.0.47:80", original, "10.180.0.5:8080"),
				reach(client, "172.30.0.45:80", original, "10.180.0.5:8080"),
				reach(client, vip, original, "10.180.0.1:8080", "10.180.1.3:8080"),
			},
		},
	}
}

// keepsSCTP verifies that a step keeps the entry of the flow "sctp", if there is one.
func keepsSCTP(s step) step {
	return when(servesSCTP, entriesAfter(s, entryKept("sctp"))).otherwise(s)
}

// interference are other programs that delete or add rules, a kernel that rejects changes, and cleanup.
func interference() []scenario {
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{277}, summary: "rules that another program deleted are restored completely at once",
			cluster: everyKind(),
			steps: []step{
				everyKindWorks(),
				flushRules,
				apply(slice("empty", "8080", "10.180.0.3 A")),
				reach(client, "172.30.0.44:80", original, "10.180.0.3:8080"),
				remove("EndpointSlice/empty"),
				forget("client"),
				everyKindWorks(),
			},
		},
		{
			covers: []int{278}, summary: "a change that the kernel rejects changes nothing, and is retried",
			cluster: everyKind(),
			steps: []step{
				everyKindWorks(),
				uninterruptedByRestart(client, vip, whileRejected(
					changeNoWait(slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.3 A"), slice("empty", "8080", "10.180.0.3 A")),
					everyKindWorks(),
				)),
				reach(client, vip, original, "10.180.0.3:8080"),
				reach(client, "172.30.0.44:80", original, "10.180.0.3:8080"),
			},
		},
		{
			covers: []int{279}, summary: "rules of other programs at the same hooks are never changed",
			cluster: everyKind(),
			steps: []step{
				requireInProcess, // a later step skips the rest anyway
				withForeignRules(
					everyKindWorks(),
					apply(slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.3 A")),
					reach(client, vip, original, "10.180.0.3:8080"),
					stopProxy, startProxy,
					reach(client, vip, original, "10.180.0.3:8080"),
					removeRules,
					untouched(client, vip),
					startProxy,
					reach(client, vip, original, "10.180.0.3:8080"),
				),
			},
		},
		{
			covers: []int{282}, summary: "after a cleanup no rules remain, nothing is translated, and the proxy can start again",
			cluster: everyKind(),
			steps: []step{
				everyKindWorks(),
				cleanUp,
				untouched(client, vip),
				untouched(client, "172.30.0.44:80"),
				untouched("outside", "192.168.0.2:32000"),
				untouched("outside", "192.168.0.2:32002"),
				cleanUp,
				startProxy,
				forget("client"),
				everyKindWorks(),
			},
		},
	}
}

// otherPrograms are the xtables lock, and a switch to another mode.
func otherPrograms() []scenario {
	const client, vip = "10.180.0.2", "172.30.0.41:80"
	return []scenario{
		{
			covers: []int{280}, summary: "a change waits while another program holds the xtables lock, in iptables-legacy only",
			cluster: everyKind(),
			steps: []step{
				everyKindWorks(),
				whileLocked(
					changeNoWait(slice("web", "t:8080 u:53/udp s:90/sctp", "10.180.0.3 A")),
					when(usesXtablesLock, lockAwaited, everyKindWorks()).
						otherwise(settle),
				),
				soon(reach(client, vip, original, "10.180.0.3:8080")),
				settle,
				reach("outside", "192.168.0.2:32000", masqueraded, "10.180.0.3:8080"),
			},
		},
		{
			covers: []int{281}, summary: "switching to another mode and back keeps connections, with rules at every moment",
			cluster: append(everyKind(),
				loadBalancer("split", `clusterIP: 172.30.0.47, externalTrafficPolicy: Local, ports: [{port: 80}]`, "192.168.99.3"),
				slice("split", "8080", "10.180.0.1 A", "10.180.1.1 B"),
			),
			steps: []step{
				uninterrupted(client, vip, uninterrupted("outside", "192.168.0.2:32000", inEachMode(
					sendOnAll,
					forget("client"), // affinity is part of the rules of a mode
					everyKindWorks(),
					reach(client, "192.168.99.3:80", original, "10.180.0.1:8080", "10.180.1.1:8080"),
					reach("outside", "192.168.99.3:80", original, "10.180.0.1:8080"),
					openAlso("pod", client, vip),
					unlessAmong("userspace", // from and to that one, UDP flows begin again, at any backend
						openAlso("udp", client, "172.30.0.41:53/udp"),
						openAlso("udp unconnected", client, "172.30.0.41:53/udp unconnected"),
						unlessAmong("ipvs", // there a ClusterIP is an address of the node, and the source of its packets to itself
							openAlso("udp unconnected on the node", "node", "172.30.0.41:53/udp unconnected"),
						),
					),
					openAlso("pod to a load balancer", client, "192.168.99.3:80"),
					openAlso("node", "node", vip),
					openAlso("outside", "outside", "192.168.0.2:32000"),
					openAlso("outside to an external address", "outside", "192.168.99.22:80"),
				))),
				sendOnAll,
			},
		},
	}
}

// forget deletes the backend that keepsBackend stored under a key.
func forget(key string) step {
	return func(e *env) error {
		delete(e.answered, key)
		return nil
	}
}
