//go:build linux

package conformance

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/sluice-proxy/sluice/test/lab"
)

// The clients of section 7.B.
const aPod, external = "10.0.0.2", "outside"

// policyServices are the Services of section 7.B: svc-c with both policies Cluster, svc-e with
// externalTrafficPolicy Local, svc-i with internalTrafficPolicy Local.
func policyServices() []string {
	return []string{
		loadBalancer("svc-c", `clusterIP: 172.30.0.41, ports: [{port: 80, nodePort: 3001}]`, "1.2.3.4"),
		slice("svc-c", "80", "10.180.0.1 A", "10.180.1.1 B"),
		loadBalancer("svc-e", `clusterIP: 172.30.0.42, ports: [{port: 80, nodePort: 3002}],
  externalTrafficPolicy: Local`, "5.6.7.8"),
		slice("svc-e", "80", "10.180.0.2 A", "10.180.1.2 B"),
		loadBalancer("svc-i", `clusterIP: 172.30.0.43, ports: [{port: 80, nodePort: 3003}],
  internalTrafficPolicy: Local`, "9.10.11.12"),
		slice("svc-i", "80", "10.180.0.3 A", "10.180.1.3 B"),
	}
}

// masquerading is section 7.B: the masquerade matrix.
func masquerading() []scenario {
	return append(append(matrix(), withoutDetector()...), detectors()...)
}

// matrix has every kind of client and address, with the default detector.
func matrix() []scenario {
	c := []string{"10.180.0.1:80", "10.180.1.1:80"}
	e := []string{"10.180.0.2:80", "10.180.1.2:80"}
	i := []string{"10.180.0.3:80", "10.180.1.3:80"}
	var all []scenario
	for _, row := range []struct {
		n        int
		summary  string
		from, to string
		seen     source
		backends []string
	}{
		{21, "pod to ClusterIP", aPod, "172.30.0.41:80", original, c},
		{22, "pod to NodePort", aPod, "192.168.0.2:3001", masqueraded, c},
		{23, "pod to VIP", aPod, "1.2.3.4:80", masqueraded, c},
		{24, "node to ClusterIP", "node", "172.30.0.41:80", masqueraded, c},
		{25, "node to NodePort", "node", "192.168.0.2:3001", masqueraded, c},
		{26, "node to VIP", "node", "1.2.3.4:80", masqueraded, c},
		{27, "outside to ClusterIP", external, "172.30.0.41:80", masqueraded, c},
		{28, "outside to NodePort", external, "192.168.0.2:3001", masqueraded, c},
		{29, "outside to VIP", external, "1.2.3.4:80", masqueraded, c},
		{30, "external Local: pod to ClusterIP, policy has no effect", aPod, "172.30.0.42:80", original, e},
		{31, "external Local: pod to NodePort of its node, short-circuit", aPod, "192.168.0.2:3002", original, e},
		{32, "external Local: pod to VIP, short-circuit", aPod, "5.6.7.8:80", original, e},
		{33, "external Local: node to ClusterIP", "node", "172.30.0.42:80", masqueraded, e},
		{34, "external Local: node to NodePort, short-circuit", "node", "192.168.0.2:3002", masqueraded, e},
		{35, "external Local: node to VIP, short-circuit", "node", "5.6.7.8:80", masqueraded, e},
		{36, "external Local: outside to ClusterIP", external, "172.30.0.42:80", masqueraded, e},
		{37, "external Local: outside to NodePort, local backends only", external, "192.168.0.2:3002", original, e[:1]},
		{38, "external Local: outside to VIP, local backends only", external, "5.6.7.8:80", original, e[:1]},
		{39, "internal Local: pod to ClusterIP, local backends only", aPod, "172.30.0.43:80", original, i[:1]},
		{40, "internal Local: pod to NodePort, policy has no effect", aPod, "192.168.0.2:3003", masqueraded, i},
		{41, "internal Local: pod to VIP, policy has no effect", aPod, "9.10.11.12:80", masqueraded, i},
		{42, "internal Local: node to ClusterIP, local backends only", "node", "172.30.0.43:80", masqueraded, i[:1]},
		{43, "internal Local: node to NodePort", "node", "192.168.0.2:3003", masqueraded, i},
		{44, "internal Local: node to VIP", "node", "9.10.11.12:80", masqueraded, i},
		{45, "internal Local: outside to ClusterIP, local backends only", external, "172.30.0.43:80", masqueraded, i[:1]},
		{46, "internal Local: outside to NodePort", external, "192.168.0.2:3003", masqueraded, i},
		{46, "internal Local: outside to VIP", external, "9.10.11.12:80", masqueraded, i},
	} {
		all = append(all, scenario{
			covers: []int{row.n}, summary: fmt.Sprintf("%s: source %s", row.summary, row.seen),
			cluster: policyServices(),
			steps:   []step{reach(row.from, row.to, row.seen, row.backends...)},
		})
	}
	return all
}

// withoutDetector are scenarios without a detector of local pods, or with masqueradeAll.
func withoutDetector() []scenario {
	c := []string{"10.180.0.1:80", "10.180.1.1:80"}
	e := []string{"10.180.0.2:80", "10.180.1.2:80"}
	const i = "10.180.0.3:80"
	return []scenario{
		{
			covers: []int{47}, summary: "without a detector no connection to a ClusterIP is masqueraded",
			settings: settings{detector: "none"}, cluster: policyServices(),
			steps: []step{
				addRoute("node-b", "203.0.113.0/24", "192.168.0.2"), // replies take the reverse path
				nodeReaches("172.30.0.41:80", c...), reach(external, "172.30.0.41:80", original, c...),
				nodeReaches("172.30.0.42:80", e...), reach(external, "172.30.0.42:80", original, e...),
				nodeReaches("172.30.0.43:80", i), reach(external, "172.30.0.43:80", original, i),
			},
		},
		{
			covers: []int{48}, summary: "without a detector there is no short-circuit for pods",
			settings: settings{detector: "none"}, cluster: policyServices(),
			steps: []step{
				reach(aPod, "192.168.0.2:3002", original, e[0]),
				reach(aPod, "5.6.7.8:80", original, e[0]),
			},
		},
		{
			covers: []int{49}, summary: "masqueradeAll masquerades connections to every ClusterIP",
			settings: settings{masqueradeAll: true}, cluster: policyServices(),
			steps: []step{
				reach(aPod, "172.30.0.41:80", masqueraded, c...),
				reach(aPod, "172.30.0.42:80", masqueraded, e...),
				reach(aPod, "172.30.0.43:80", masqueraded, i),
			},
		},
		{
			covers:   []int{50},
			summary:  "masqueradeAll without a detector applies to ClusterIPs, not to external traffic under Local",
			settings: settings{masqueradeAll: true, detector: "none"}, cluster: policyServices(),
			steps: []step{
				reach(aPod, "172.30.0.41:80", masqueraded, c...),
				reach(aPod, "5.6.7.8:80", original, e[0]),
				reach("node", "172.30.0.41:80", masqueraded, c...),
				reach(external, "172.30.0.41:80", masqueraded, c...),
			},
		},
		{
			covers: []int{51}, summary: "masqueradeAll: a backend reaches itself through the ClusterIP",
			settings: settings{masqueradeAll: true}, cluster: policyServices(),
			steps: []step{reach("10.180.0.1", "172.30.0.41:80", masqueraded, c...)},
		},
		{
			covers:  []int{52},
			summary: "a backend that connects to itself by the short-circuit of a VIP under Local is masqueraded",
			cluster: policyServices(),
			steps: []step{
				reach("10.180.0.2", "5.6.7.8:80", anySource, e...),
				apply(slice("svc-e", "80", "10.180.0.2 A")),
				reach("10.180.0.2", "5.6.7.8:80", masqueraded, e[0]),
				reach("10.180.0.2", "192.168.0.2:3002", masqueraded, e[0]),
			},
		},
	}
}

// detectors are the ways to recognize pods of this node.
func detectors() []scenario {
	const here, elsewhere = "10.180.0.9", "10.180.1.9@B"
	c := []string{"10.180.0.1:80", "10.180.1.1:80"}
	steps := []step{
		reach(here, "172.30.0.41:80", original, c...),
		reach(elsewhere, "172.30.0.41:80", masqueraded, c...),
		reach("node", "172.30.0.41:80", masqueraded, c...),
		reach(here, "5.6.7.8:80", original, "10.180.0.2:80", "10.180.1.2:80"),
		reach("10.180.0.1", "172.30.0.41:80", anySource, c...), // hairpin among them
	}
	return []scenario{
		{
			covers: []int{53}, summary: "pods are recognized by their bridge: pods of other nodes are not local",
			settings: settings{detector: "bridge cbr0"}, lab: lab.Options{Bridge: "cbr0"},
			cluster: policyServices(), steps: append([]step{hairpinPort("10.180.0.1")}, steps...),
		},
		{
			covers: []int{54}, summary: "pods are recognized by the prefix of their interface names",
			settings: settings{detector: "prefix veth"}, cluster: policyServices(), steps: steps,
		},
		{
			covers: []int{55}, summary: "pods are recognized by the node's podCIDR: pods of other nodes are not local",
			settings: settings{detector: "NodeCIDR"}, cluster: policyServices(), steps: steps,
		},
		{
			covers:  []int{56},
			summary: "masqueraded packets have the mark 0x4000 until they leave the node, and no other bit changes",
			cluster: policyServices(),
			steps: []step{
				watchMarks,
				reach(external, "1.2.3.4:80", masqueraded, c...),
				when(acceptsMasqueraded, checkMarks).otherwise(),
			},
		},
	}
}

// hairpinPort lets the bridge send frames out of the port by which they came in, like network
// plugins do: with br_netfilter a connection of a pod to itself does not leave the bridge.
func hairpinPort(pod string) step {
	return func(e *env) error {
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		e.lab.NodeA.MustRun("ip", "link", "set", h.Interface(), "type", "bridge_slave", "hairpin", "on")
		return nil
	}
}

// watchMarks sets another bit of the mark on all packets that enter node A, and counts the
// marks of packets that leave it, before and after source NAT.
func watchMarks(e *env) error {
	e.alters("rules that count marks")
	e.lab.NodeA.Nft(`table inet watch {
	counter marked {}
	counter clean {}
	counter wrong {}
	chain in { type filter hook prerouting priority -150; meta mark set 0x1; }
	chain before { type filter hook postrouting priority 50; tcp dport 80 meta mark 0x4001 counter name marked; }
	chain after { type filter hook postrouting priority 150;
		tcp dport 80 meta mark 0x1 counter name clean
		tcp dport 80 meta mark != 0x1 counter name wrong
	}
}`)
	return nil
}

// checkMarks verifies the counters of watchMarks.
func checkMarks(e *env) error {
	out := e.lab.NodeA.MustRun("nft", "list", "counters")
	for name, wanted := range map[string]bool{"marked": true, "clean": true, "wrong": false} {
		m := regexp.MustCompile(`counter ` + name + ` \{\s+packets (\d+)`).FindStringSubmatch(out)
		if m == nil {
			return fmt.Errorf("no counter %s in:\n%s", name, out)
		}
		if n, _ := strconv.Atoi(m[1]); n > 0 != wanted {
			return fmt.Errorf("%d packets %s, want some: %t", n, name, wanted)
		}
	}
	return nil
}
