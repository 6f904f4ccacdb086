//go:build linux

package conformance

import (
	"github.com/sluice-proxy/sluice/internal/route"
)

// Traits is what a plane does where planes differ by what they are made of. It
// is what the behaviour to reproduce says of a mode, whatever the code under
// test says of itself.
type Traits struct {
	mode      string         // of --proxy-mode
	nodePorts []string       // nodePortAddresses where settings have none
	loopback  route.Loopback // when these mean 127.0.0.0/8
	rules     rules          // as people see them
	firewall  variant        // what people have for other rules

	unknownPort   expectation // at a ClusterIP, where its Service has no port
	unallocated expectation // at an address of a ServiceCIDR that no Service has
	emptyVIPUnlisted    expectation // of a client not in the source ranges of a VIP without endpoints
	emptyNodePortUnserved    expectation // at a NodePort without endpoints, on an address of the node that serves none
	emptyVIPFromNode    expectation // of the node itself, at a VIP or an externalIP without endpoints
	pingClusterIP        expectation // at a ClusterIP
}

// expectation is a look at what a client sees of an address.
type expectation func(from, to string) step

// Nftables is the nature of nftables mode: it knows all addresses of Services,
// and leaves to others what they keep out.
func Nftables() Traits {
	return Traits{
		mode: "nftables", nodePorts: []string{"primary"}, loopback: route.LoopbackNamed,
		rules: nftRules{}, firewall: variant("nft"),
		unknownPort: refused, unallocated: dropped, emptyVIPUnlisted: dropped,
		emptyNodePortUnserved: untouched, emptyVIPFromNode: refused, pingClusterIP: pingRefused,
	}
}

// Iptables is the nature of iptables mode with the programs of a variant, "nft"
// or "legacy": it knows what it balances and no more, and lives among the rules
// of others.
func Iptables(programs string) Traits {
	return Traits{
		mode: "iptables", nodePorts: []string{"all"}, loopback: route.LoopbackIncluded,
		rules: variant(programs), firewall: variant(programs),
		unknownPort: untouched, unallocated: untouched, emptyVIPUnlisted: refused,
		emptyNodePortUnserved: refused, emptyVIPFromNode: untouched, pingClusterIP: pingUntouched,
	}
}

// unknownPort looks at a ClusterIP, where its Service has no port.
func unknownPort(from, to string) step {
	return func(e *env) error { return e.traits().unknownPort(from, to)(e) }
}

// unallocated looks at an address of a ServiceCIDR that no Service has.
func unallocated(from, to string) step {
	return func(e *env) error { return e.traits().unallocated(from, to)(e) }
}

// emptyVIPUnlisted looks at a VIP without endpoints, of a client that is not in its
// source ranges.
func emptyVIPUnlisted(from, to string) step {
	return func(e *env) error { return e.traits().emptyVIPUnlisted(from, to)(e) }
}

// emptyNodePortUnserved looks at a NodePort without endpoints, on an address of the node that
// serves no NodePorts.
func emptyNodePortUnserved(from, to string) step {
	return func(e *env) error { return e.traits().emptyNodePortUnserved(from, to)(e) }
}

// emptyVIPFromNode looks at a VIP or an externalIP without endpoints, from the node.
func emptyVIPFromNode(to string) step {
	return func(e *env) error { return e.traits().emptyVIPFromNode("node", to)(e) }
}

// pingClusterIP looks at what becomes of an ICMP echo to a ClusterIP.
func pingClusterIP(from, to string) step {
	return func(e *env) error { return e.traits().pingClusterIP(from, to)(e) }
}

func (e *env) traits() *Traits { return &e.proxy.plane.Traits }

// cond tells planes apart, for what only one scenario asks of them.
type condition func(*Traits) bool

func inIptablesMode(n *Traits) bool { return n.mode == "iptables" }

// usesXtablesLock planes wait for others who change rules at the same time.
func usesXtablesLock(n *Traits) bool { return inIptablesMode(n) && n.firewall == "legacy" }

// branch is a step that is another one for planes of a kind.
type branch struct {
	cond  condition
	steps []step
}

// when has something be so for planes of a kind; what is so for all others follows:
//
//	on(inIptablesMode, reach(...)).otherwise(untouched(...))
func when(k condition, steps ...step) branch { return branch{k, steps} }

func (f branch) otherwise(steps ...step) step {
	return func(e *env) error {
		if f.cond(e.traits()) {
			return sequence(f.steps...)(e)
		}
		return sequence(steps...)(e)
	}
}
