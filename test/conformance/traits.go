//go:build linux

package conformance

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Traits are the behaviours in which the proxy modes differ. They come from the behaviour to
// reproduce, not from the code under test.
type Traits struct {
	mode      string         // of --proxy-mode
	nodePorts []string       // nodePortAddresses where settings have none
	loopback  route.Loopback // when nodePortAddresses include 127.0.0.0/8
	listLocal bool           // route.Options.ListLocal
	rules     rules          // access to the rules of the plane
	proxied   bool           // a process makes the connections to backends, so that these see an address of the node
	firewall  variant        // the iptables variant for the rules of other programs

	unknownPort      expectation // connection to a ClusterIP on a port that its Service does not have
	unallocated      expectation // connection to an address of a ServiceCIDR without a Service
	emptyVIPUnlisted expectation // connection to a VIP without endpoints, from outside its source ranges
	emptyVIPFromNode expectation // connection from the node to a VIP or externalIP without endpoints
	pingClusterIP    expectation // ICMP echo to a ClusterIP

	// emptyNodePortUnserved is about a connection to a NodePort without endpoints, on a node address that serves no
	// NodePorts.
	emptyNodePortUnserved expectation
}

// refusal returns how a connection to a Service without endpoints is refused: by ICMP port unreachable, or by a reset,
// where the rules may differ from kube-proxy's.
func (n *Traits) refusal(p lab.Protocol) lab.Outcome {
	if n.proxied && p == lab.TCP {
		return lab.Reset
	}
	return lab.Refused
}

// expectation returns a step that verifies the result of a connection.
type expectation func(from, to string) step

// Nftables are the traits of nftables mode, which has rules for all addresses of Services, including Services without
// endpoints.
func Nftables() Traits {
	return Traits{
		mode: "nftables", nodePorts: []string{"primary"}, loopback: route.LoopbackNamed,
		rules: nftRules{}, firewall: variant("nft"),
		unknownPort: refused, unallocated: dropped, emptyVIPUnlisted: dropped,
		emptyNodePortUnserved: untouched, emptyVIPFromNode: refused, pingClusterIP: pingRefused,
	}
}

// EBPF are the traits of ebpf mode: the traits of the packet plane beneath.
func EBPF() Traits {
	n := Nftables()
	n.mode, n.listLocal = "ebpf", true
	return n
}

// Iptables are the traits of iptables mode with the programs of a variant, "nft" or "legacy".
// Except for rejected Services it has rules only for ports with endpoints.
func Iptables(programs string) Traits {
	return Traits{
		mode: "iptables", nodePorts: []string{"all"}, loopback: route.LoopbackIncluded,
		rules: variant(programs), firewall: variant(programs),
		unknownPort: untouched, unallocated: untouched, emptyVIPUnlisted: refused,
		emptyNodePortUnserved: refused, emptyVIPFromNode: untouched, pingClusterIP: pingUntouched,
	}
}

// IPVS are the traits of ipvs mode. Addresses of Services are addresses of the node, which answers pings and refuses
// all ports that no Service has; NodePorts are virtual servers at each address that serves them.
func IPVS(programs string) Traits {
	return Traits{
		mode: "ipvs", nodePorts: []string{"all"}, loopback: route.LoopbackNever, listLocal: true,
		rules: ipvsRules{variant(programs)}, firewall: variant(programs),
		unknownPort: refused, unallocated: untouched, emptyVIPUnlisted: dropped,
		emptyNodePortUnserved: untouched, emptyVIPFromNode: refused, pingClusterIP: pingAnswered,
	}
}

// Userspace are the traits of mode userspace. It has the rules of mode iptables; a process makes the connections to
// the backends.
func Userspace(programs string) Traits {
	n := Iptables(programs)
	n.mode, n.proxied = "userspace", true
	return n
}

// unknownPort connects to a ClusterIP on a port that its Service does not have.
func unknownPort(from, to string) step {
	return func(e *env) error { return e.traits().unknownPort(from, to)(e) }
}

// unallocated connects to an address of a ServiceCIDR that no Service has.
func unallocated(from, to string) step {
	return func(e *env) error { return e.traits().unallocated(from, to)(e) }
}

// emptyVIPUnlisted connects to a VIP without endpoints, from a client outside its source ranges.
func emptyVIPUnlisted(from, to string) step {
	return func(e *env) error { return e.traits().emptyVIPUnlisted(from, to)(e) }
}

// emptyNodePortUnserved connects to a NodePort without endpoints, on an address of the node that serves no NodePorts.
func emptyNodePortUnserved(from, to string) step {
	return func(e *env) error { return e.traits().emptyNodePortUnserved(from, to)(e) }
}

// emptyVIPFromNode connects from the node to a VIP or an externalIP without endpoints.
func emptyVIPFromNode(to string) step {
	return func(e *env) error { return e.traits().emptyVIPFromNode("node", to)(e) }
}

// pingClusterIP sends an ICMP echo to a ClusterIP.
func pingClusterIP(from, to string) step {
	return func(e *env) error { return e.traits().pingClusterIP(from, to)(e) }
}

func (e *env) traits() *Traits { return &e.proxy.plane.Traits }

// condition selects planes by their traits.
type condition func(*Traits) bool

// inIptablesMode selects planes with the rules of mode iptables.
func inIptablesMode(n *Traits) bool { return n.mode == "iptables" || inUserspaceMode(n) }

// acceptsMasqueraded selects planes with rules that accept connections which they masquerade. Connections of a
// process need a firewall that accepts the replies, as it must for other programs.
func acceptsMasqueraded(n *Traits) bool { return inIptablesMode(n) && !n.proxied }

func inUserspaceMode(n *Traits) bool { return n.mode == "userspace" }

// hasSchedulers selects planes that have a scheduler by hash, and least connections.
func hasSchedulers(n *Traits) bool { return n.mode != "iptables" }

// hasTables selects planes with the tables and hashes of package slots.
func hasTables(n *Traits) bool { return hasSchedulers(n) && !inIPVSMode(n) }

// servesSCTP selects planes that translate packets. A process forwards TCP and UDP only.
func servesSCTP(n *Traits) bool { return !n.proxied }

// usesIptables selects planes with rules of iptables.
func usesIptables(n *Traits) bool { return inIptablesMode(n) || inIPVSMode(n) }

// servesAllAddresses selects planes that serve NodePorts at all addresses by default.
func servesAllAddresses(n *Traits) bool { return slices.Contains(n.nodePorts, "all") }

// mechanisms returns the mechanisms in which the plane has chains with kube-proxy's names.
func (n *Traits) mechanisms() []takeover.Mechanism {
	var all []takeover.Mechanism
	if inIPVSMode(n) {
		all = append(all, takeover.IPVS)
	}
	if usesIptables(n) {
		all = append(all, takeover.Mechanism("iptables-"+string(n.firewall)))
	}
	return all
}

func inIPVSMode(n *Traits) bool { return n.mode == "ipvs" }

// nodeReaches connects from the node to the address of a Service without source NAT. If the
// node has that address itself, it is the source, and gets source NAT.
func nodeReaches(to string, backends ...string) step {
	return when(inIPVSMode, reach("node", to, masqueraded, backends...)).
		otherwise(reach("node", to, original, backends...))
}

// usesXtablesLock selects planes that wait for the xtables lock while another program holds it.
func usesXtablesLock(n *Traits) bool { return inIptablesMode(n) && n.firewall == "legacy" }

// branch is a step that depends on the plane.
type branch struct {
	cond  condition
	steps []step
}

// when runs steps for planes that satisfy a condition. The steps for all others follow:
//
//	when(inIptablesMode, reach(...)).otherwise(untouched(...))
func when(k condition, steps ...step) branch { return branch{k, steps} }

func (f branch) otherwise(steps ...step) step {
	return func(e *env) error {
		if f.cond(e.traits()) {
			return sequence(f.steps...)(e)
		}
		return sequence(steps...)(e)
	}
}
