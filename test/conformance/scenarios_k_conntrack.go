//go:build linux

package conformance

import (
	"slices"

	"github.com/sluice-proxy/sluice/test/lab"
)

// udpFlows is section 7.K: UDP and conntrack.
func udpFlows() []scenario {
	return slices.Concat(udpBackendChanges(), unconnectedUDPClients(), staleFlows(), specialFlows(), earlyClients())
}

// earlyClients are TCP clients that connect before they can be served. kube-proxy leaves their
// conntrack entries, so that their retransmissions fail for up to two minutes.
func earlyClients() []scenario {
	const near = "10.180.0.1"
	web := service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`)
	backend := slice("web", "80", near+" A")
	all := []scenario{
		{
			covers: []int{211}, summary: "a TCP client that connected before the Service existed is answered",
			cluster: []string{backend},
			steps:   []step{connectDuring("10.180.0.2", "172.30.0.41:80", apply(web), near+":80")},
		},
	}
	for _, client := range []string{"10.180.0.2", "node"} {
		all = append(all, scenario{
			covers: []int{211}, summary: "a TCP client that connected while there were no rules is answered: " + client,
			cluster: []string{web, backend},
			steps: []step{
				stopProxy, replaceAllRules,
				connectDuring(client, "172.30.0.41:80", sequence(untranslatedEntry(client, "172.30.0.41:80"), startProxy),
					near+":80"),
			},
		})
	}
	return all
}

// udpBackendChanges are connected UDP clients with a fixed source port while backends change.
func udpBackendChanges() []scenario {
	const near, far = "10.180.0.1", "10.180.1.1"
	plain := service("web", `clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP}]`)
	nodePort := service("web",
		`type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP, nodePort: 32000}]`)
	balanced := loadBalancer("web", `clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP}]`, "192.168.99.1")
	return []scenario{
		{
			covers: []int{197, 198}, summary: "a UDP client of a NodePort always reaches a current backend",
			cluster: []string{nodePort},
			steps:   followsBackends("outside", "192.168.0.2:32000/udp", near+" A", far+" B"),
		},
		{
			covers: []int{197}, summary: "a UDP client that sent before the NodePort existed reaches the backend",
			cluster: []string{plain, slice("web", "53/udp", near+" A")},
			steps: []step{
				open("f", "outside", "192.168.0.2:32000/udp"),
				unanswered("f", lab.Refused),
				entriesAfter(apply(nodePort), entryDeleted("f")),
				soon(send("f", near+":53")),
			},
		},
		{
			covers: []int{199}, summary: "a UDP client of a ClusterIP always reaches a current backend",
			cluster: []string{plain},
			steps:   followsBackends("10.180.0.2", "172.30.0.41:53/udp", near+" A", far+" B"),
		},
		{
			covers: []int{200}, summary: "a UDP client of a ClusterIP under internal Local always reaches a current backend",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, internalTrafficPolicy: Local, ports: [{port: 53, protocol: UDP}]`),
			},
			steps: followsBackends("10.180.0.2", "172.30.0.41:53/udp", near+" A", "10.180.0.3 A"),
		},
		{
			covers: []int{201}, summary: "a UDP client on the node always reaches a current backend of a ClusterIP",
			cluster: []string{plain},
			steps:   followsBackends("node", "172.30.0.41:53/udp", near+" A", far+" B"),
		},
		{
			covers: []int{202}, summary: "a UDP client of a VIP reaches a new backend on another node",
			cluster: []string{balanced},
			steps:   followsBackends("outside", "192.168.99.1:53/udp", near+" A", far+" B"),
		},
		{
			covers: []int{202}, summary: "a UDP client of a VIP reaches a new backend on the same node",
			cluster: []string{balanced},
			steps:   followsBackends("outside", "192.168.99.1:53/udp", near+" A", "10.180.0.3 A"),
		},
		{
			covers: []int{203}, summary: "a UDP client reaches an endpoint as soon as it is ready",
			cluster: []string{plain, slice("web", "53/udp", near+" A 000")},
			steps: []step{
				open("f", "10.180.0.2", "172.30.0.41:53/udp"),
				unanswered("f", lab.Refused),
				apply(slice("web", "53/udp", near+" A")),
				soon(send("f", near+":53")),
			},
		},
		{
			covers: []int{204}, summary: "a UDP client of a NodePort reaches a changed target port",
			cluster: []string{nodePort, slice("web", "53/udp", near+" A")},
			steps: []step{
				open("f", "outside", "192.168.0.2:32000/udp", near+":53"),
				entriesAfter(apply(slice("web", "5353/udp", near+" A")), entryDeleted("f")),
				send("f", near+":5353"),
			},
		},
	}
}

// unconnectedUDPClients are the same clients, but with sockets that do not connect.
func unconnectedUDPClients() []scenario {
	const near, far = "10.180.0.1", "10.180.1.1"
	plain := service("web", `clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP}]`)
	nodePort := service("web",
		`type: NodePort, clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP, nodePort: 32000}]`)
	return []scenario{
		{
			covers: []int{199}, summary: "a UDP client that does not connect always reaches a current backend of a ClusterIP",
			cluster: []string{plain},
			steps:   followsBackends("10.180.0.2", "172.30.0.41:53/udp unconnected", near+" A", far+" B"),
		},
		{
			covers:  []int{201},
			summary: "a UDP client on the node that does not connect always reaches a current backend of a ClusterIP",
			cluster: []string{plain},
			steps:   followsBackends("node", "172.30.0.41:53/udp unconnected", near+" A", far+" B"),
		},
		{
			covers: []int{197}, summary: "a UDP client that does not connect always reaches a current backend of a NodePort",
			cluster: []string{nodePort},
			steps:   followsBackends("outside", "192.168.0.2:32000/udp unconnected", near+" A", far+" B"),
		},
	}
}

// followsBackends are the steps of a UDP client that sends before there are endpoints. Then an
// endpoint is added, then a second one, and then the first is deleted.
func followsBackends(from, to, first, second string) []step {
	address := func(endpoint string) string { return endpoint[:len(endpoint)-len(" A")] + ":53" }
	return []step{
		open("f", from, to),
		unanswered("f", lab.Refused),
		apply(slice("web", "53/udp", first)),
		soon(send("f", address(first))),
		apply(slice("web", "53/udp", first, second)),
		send("f", address(first)),
		entriesAfter(apply(slice("web", "53/udp", second)), entryDeleted("f")),
		send("f", address(second)),
	}
}

// staleFlows are changes after which UDP conntrack entries must be deleted: exactly the entries that lead to an
// endpoint that does not serve, or that bypass a Service.
func staleFlows() []scenario {
	const fields = `externalIPs: [192.168.99.22], ports: [{name: u, port: 8000, protocol: UDP, nodePort: 32000}]`
	everywhere := loadBalancer("web", `clusterIP: 172.30.0.41, `+fields, "192.168.99.1")
	opened := []step{
		open("cluster", "10.180.0.2", "172.30.0.41:8000/udp", "10.180.0.1:8000"),
		open("vip", "outside", "192.168.99.1:8000/udp", "10.180.0.1:8000"),
		open("external", "outside", "192.168.99.22:8000/udp", "10.180.0.1:8000"),
		open("node port", "outside", "192.168.0.2:32000/udp", "10.180.0.1:8000"),
	}
	all := []entryCheck{entryDeleted("cluster"), entryDeleted("vip"), entryDeleted("external"), entryDeleted("node port")}
	return []scenario{
		deletedEndpoints(),
		{
			covers: []int{210},
			summary: "without serving endpoints all UDP entries of a Service are deleted, " +
				"including the entries of its NodePort, which kube-proxy keeps",
			cluster: []string{everywhere, slice("web", "u:8000/udp", "10.180.0.1 A")},
			steps: append(slices.Clip(opened),
				entriesAfter(apply(slice("web", "u:8000/udp", "10.180.0.1 A 000")), all...),
				unanswered("cluster", lab.Refused),
				unanswered("vip", lab.Refused),
				unanswered("external", lab.Refused),
				unanswered("node port", lab.Refused),
			),
		},
		{
			covers: []int{210}, summary: "the UDP entries of a deleted Service are deleted (kube-proxy keeps them)",
			cluster: []string{everywhere, slice("web", "u:8000/udp", "10.180.0.1 A")},
			steps: append(slices.Clip(opened),
				entriesAfter(remove("Service/web"), all...),
				unanswered("cluster", lab.TimedOut),
			),
		},
		{
			covers: []int{211}, summary: "a UDP flow from before the Service existed reaches the Service",
			cluster: []string{service("other", `clusterIP: 172.30.0.42, ports: [{port: 53, protocol: UDP}]`)},
			steps: []step{
				open("f", "10.180.0.2", "172.31.0.41:8000/udp"),
				unanswered("f", lab.TimedOut),
				entriesAfter(apply(
					service("web", `clusterIP: 172.31.0.41, ports: [{port: 8000, protocol: UDP}]`),
					slice("web", "8000/udp", "10.180.0.1 A"),
				), entryDeleted("f")),
				send("f", "10.180.0.1:8000"),
			},
		},
		{
			covers: []int{212},
			summary: "a UDP flow to another host keeps its entry, though a NodePort has the same number " +
				"(kube-proxy deletes it)",
			cluster: []string{everywhere, slice("web", "u:8000/udp", "10.180.0.1 A")},
			pods:    []string{"outside 32000/udp"},
			steps: []step{
				open("foreign", "10.180.0.2", "203.0.113.2:32000/udp", "203.0.113.2:32000"),
				open("node port", "outside", "192.168.0.2:32000/udp", "10.180.0.1:8000"),
				entriesAfter(apply(slice("web", "u:8000/udp", "10.180.0.3 A")), entryDeleted("node port"), entryKept("foreign")),
				entriesAfter(apply(slice("web", "u:8000/udp")), entryDeleted("node port"), entryKept("foreign")),
				send("foreign", "203.0.113.2:32000"),
			},
		},
	}
}

// deletedEndpoints is one change that deletes and terminates endpoints, with flows of every kind.
func deletedEndpoints() scenario {
	const (
		udp, tcp    = "172.30.0.41:8000/udp", "172.30.0.41:8000/tcp"
		sctp, other = "172.30.0.41:8000/sctp", "172.30.0.41:8001/udp"
		ports       = "u:8000/udp t:8000/tcp s:8000/sctp"
	)
	return scenario{
		covers: []int{205, 206, 207, 208, 209}, summary: "only UDP entries of endpoints that no longer serve are deleted",
		cluster: []string{
			service("web", `clusterIP: 172.30.0.41, ports: [
  {name: u, port: 8000, protocol: UDP}, {name: t, port: 8000, protocol: TCP},
  {name: s, port: 8000, protocol: SCTP}, {name: v, port: 8001, protocol: UDP}]`),
			slice("web", ports, "10.180.0.1 A", "10.180.0.3 A", "10.180.1.1 B", "10.180.1.3 B"),
			slice("web/v", "v:8001/udp", "10.180.0.3 A"),
		},
		steps: []step{
			openTo("ready", "10.180.0.2", udp, "10.180.0.1:8000"),
			openTo("deleted", "10.180.0.2", udp, "10.180.0.3:8000"),
			openTo("terminating", "10.180.0.2", udp, "10.180.1.1:8000"),
			openTo("not serving", "10.180.0.2", udp, "10.180.1.3:8000"),
			openTo("tcp", "10.180.0.2", tcp, "10.180.0.3:8000"),
			when(servesSCTP, openTo("sctp", "10.180.0.2", sctp, "10.180.0.3:8000")).otherwise(),
			openTo("other port", "10.180.0.2", other, "10.180.0.3:8001"),
			keepsSCTP(entriesAfter(apply(slice("web", ports, "10.180.0.1 A", "10.180.1.1 B 011", "10.180.1.3 B 001")),
				entryDeleted("deleted"), entryDeleted("not serving"),
				entryKept("ready"), entryKept("terminating"), entryKept("tcp"), entryKept("other port"))),
			send("tcp"), when(servesSCTP, send("sctp")).otherwise(), send("terminating"),
			send("deleted", "10.180.0.1:8000"), send("not serving", "10.180.0.1:8000"),
		},
	}
}

// specialFlows are one-way streams, and packets that conntrack classifies as invalid.
func specialFlows() []scenario {
	const here = "10.180.0.1"
	return []scenario{
		{
			covers: []int{213}, summary: "a one-way UDP stream is refused when the last endpoint is deleted",
			cluster: []string{
				service("statsd", `clusterIP: 172.30.0.41, ports: [{port: 8125, protocol: UDP}]`),
				slice("statsd", "8125/udp", "10.180.0.1 A"),
			},
			steps: []step{
				dropUDP("10.180.0.1", 8125),
				open("f", "10.180.0.2", "172.30.0.41:8125/udp"),
				unanswered("f", lab.TimedOut),
				entriesAfter(apply(slice("statsd", "8125/udp")), entryDeleted("f")),
				unanswered("f", lab.Refused),
			},
		},
		{
			covers: []int{214}, summary: "a segment out of the window does not reset a connection",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				slice("web", "8080", "10.180.0.1 A"),
			},
			steps: []step{
				open("f", "10.180.0.2", "172.30.0.41:80", "10.180.0.1:8080"),
				outOfWindow("f", "10.180.0.2", "10.180.0.1"),
				send("f", "10.180.0.1:8080"),
			},
		},
		{
			covers: []int{214}, summary: "invalid packets are forwarded, but dropped in iptables mode",
			cluster: exposed("Cluster", "10.180.0.1 A"),
			steps: []step{
				when(usesIptables, invalidDropped("10.180.0.2", "203.0.113.2:80")).
					otherwise(invalidPasses("10.180.0.2", "203.0.113.2:80")),
				removeRules,
				invalidPasses("10.180.0.2", "203.0.113.2:80"),
			},
		},
		{
			covers: []int{214}, summary: "with nf_conntrack_tcp_be_liberal invalid packets are forwarded in iptables mode too",
			settings: settings{liberal: true}, cluster: exposed("Cluster", "10.180.0.1 A"),
			steps: []step{
				invalidPasses("10.180.0.2", "203.0.113.2:80"),
				open("f", aPod, inside, here+":80"),
				outOfWindow("f", aPod, here),
				send("f", here+":80"),
			},
		},
	}
}
