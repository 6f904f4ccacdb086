//go:build linux

package conformance

import (
	"fmt"

	"github.com/sluice-proxy/sluice/test/lab"
)

// noEndpoints is section 7.H: Services without endpoints.
func noEndpoints() []scenario {
	return append(emptyServices(), emptyChanges()...)
}

// empty is a Service without endpoints, on every protocol and with an address of every kind.
func empty() []string { return everyProtocol("Cluster")[:1] }

func emptyServices() []scenario {
	// refuse verifies that a frontend refuses every protocol.
	refuse := func(from, to string) step {
		return sequence(refused(from, to), refused(from, to+"/udp"), refused(from, to+"/sctp"))
	}
	fromNode := func(to string) step {
		return sequence(emptyVIPFromNode(to), emptyVIPFromNode(to+"/udp"), emptyVIPFromNode(to+"/sctp"))
	}
	const nodePort = "192.168.0.2:3001"
	return []scenario{
		{
			covers: []int{153, 154}, summary: "pod to ClusterIP is refused", cluster: empty(),
			steps: []step{refuse(aPod, inside)},
		},
		{
			covers: []int{155}, summary: "node to ClusterIP is refused", cluster: empty(),
			steps: []step{refuse("node", inside)},
		},
		{
			covers: []int{156}, summary: "outside, pod and node to a NodePort are refused", cluster: empty(),
			steps: []step{refuse("outside", nodePort), refuse(aPod, nodePort), refuse("node", nodePort)},
		},
		{
			covers: []int{157}, summary: "a NodePort without endpoints, on an address that serves no NodePorts",
			cluster:  empty(),
			settings: settings{nodePorts: []string{"primary"}},
			steps: []step{
				emptyNodePortUnserved("outside", "192.168.1.2:3001"), emptyNodePortUnserved(aPod, "192.168.1.2:3001"),
				refuse("outside", nodePort),
			},
		},
		{
			covers: []int{157}, summary: "a NodePort without local endpoints, on an address that serves no NodePorts",
			cluster: exposed("Local", "10.180.1.1 B"), settings: settings{nodePorts: []string{"primary"}},
			steps: []step{
				when(inIptablesMode, dropped("outside", "192.168.1.2:3001")).otherwise(untouched("outside", "192.168.1.2:3001")),
				dropped("outside", nodePort),
			},
		},
		{
			covers: []int{158}, summary: "outside and pod to a VIP are refused", cluster: empty(),
			steps: []step{refuse("outside", outwards), refuse(aPod, outwards), fromNode(outwards)},
		},
		{
			covers: []int{159}, summary: "pod and outside to an externalIP are refused", cluster: empty(),
			steps: []step{
				refuse(aPod, "192.168.99.11:80"), refuse("outside", "192.168.99.11:80"), fromNode("192.168.99.11:80"),
			},
		},
		{
			covers: []int{156, 158, 159}, summary: "under external Local connections are refused, not dropped",
			cluster: exposed("Local"),
			steps:   []step{onFrontends(func(to string) step { return sequence(refused("outside", to), refused(aPod, to)) })},
		},
		{
			covers: []int{162}, summary: "refused with ICMPv6 port unreachable", families: onlyIPv6, cluster: empty(),
			steps: []step{refuse(aPod, inside), refusedBy(aPod, inside, lab.ICMP{Type: 1, Code: 4})},
		},
		{
			covers: []int{153}, summary: "refused with ICMP port unreachable", families: onlyIPv4, cluster: empty(),
			steps: []step{refuse(aPod, inside), refusedBy(aPod, inside, lab.ICMP{Type: 3, Code: 3})},
		},
	}
}

// emptyChanges are Services that lose their last endpoint, or get their first.
func emptyChanges() []scenario {
	spec := `sessionAffinity: ClientIP, clusterIP: 172.30.0.41, ports: [{port: 80}]`
	return []scenario{
		{
			covers: []int{160}, summary: "refused as soon as the slice is deleted",
			cluster: exposed("Cluster", "10.180.0.1 A"),
			steps: []step{
				reach(aPod, inside, original, "10.180.0.1:80"),
				remove("EndpointSlice/web"),
				refused(aPod, inside), onFrontends(func(to string) step { return refused("outside", to) }),
			},
		},
		{
			covers: []int{160}, summary: "refused as soon as the slice is empty, or has other ports",
			cluster: exposed("Cluster", "10.180.0.1 A"),
			steps: []step{
				apply(slice("web", "80")), refused(aPod, inside),
				apply(slice("web", "80", "10.180.0.1 A")), reach(aPod, inside, original, "10.180.0.1:80"),
				apply(slice("web", "other:80", "10.180.0.1 A")), refused(aPod, inside),
			},
		},
		{
			covers: []int{161}, summary: "balanced as soon as there are endpoints",
			cluster: exposed("Cluster"),
			steps: []step{
				refused(aPod, inside),
				apply(slice("web", "80", "10.180.0.1 A", "10.180.1.1 B")),
				reach(aPod, inside, original, "10.180.0.1:80", "10.180.1.1:80"),
				onFrontends(func(to string) step { return reach("outside", to, masqueraded, "10.180.0.1:80", "10.180.1.1:80") }),
			},
		},
		{
			covers: []int{163}, summary: "session affinity: refused, and earlier affinity is forgotten",
			cluster: []string{service("web", spec)},
			steps: []step{
				refused(aPod, inside),
				forgotten(aPod, inside, []string{slice("web", "80", "10.180.0.1 A", "10.180.1.1 B")},
					"10.180.0.1:80", "10.180.1.1:80"),
			},
		},
	}
}

// refusedBy verifies the ICMP message with which a client is refused, unless a reset refuses it.
func refusedBy(from, to string, want lab.ICMP) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		r := client.Try(probe)
		if r.Outcome == lab.Reset && e.traits().refusal(probe.Protocol) == lab.Reset {
			return nil
		}
		if r.Outcome != lab.Refused || r.ICMP.Type != want.Type || r.ICMP.Code != want.Code {
			return fmt.Errorf("%s to %s: %s, want ICMP type %d code %d", from, to, r, want.Type, want.Code)
		}
		return nil
	}
}

// forgotten deletes the slice of Service web and adds it again so often that a client that
// reached the same backend each time must have had affinity.
func forgotten(from, to string, slices []string, backends ...string) step {
	return func(e *env) error {
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		hits := map[string]bool{}
		for range lab.Samples(len(want)) {
			if err := apply(slices...)(e); err != nil {
				return err
			}
			r := client.Try(probe)
			if r.Outcome != lab.Answered {
				return fmt.Errorf("%s to %s: %s, want an answer", from, to, r)
			}
			hits[r.Backend.String()] = true
			if err := sequence(remove("EndpointSlice/web"), refused(from, to))(e); err != nil {
				return err
			}
		}
		if len(hits) != len(want) {
			return fmt.Errorf("%s to %s: always reached %v, want all of %s", from, to, hits, want)
		}
		return nil
	}
}
