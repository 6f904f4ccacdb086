//go:build linux

package conformance

import (
	"github.com/sluice-proxy/sluice/internal/route"
)

// Nature is what a plane does where planes differ by what they are made of. It
// is what the behaviour to reproduce says of a mode, whatever the code under
// test says of itself.
type Nature struct {
	mode      string         // of --proxy-mode
	nodePorts []string       // nodePortAddresses where settings have none
	loopback  route.Loopback // when these mean 127.0.0.0/8
	rules     rules          // as people see them
	firewall  variant        // what people have for other rules

	otherPort   look // at a ClusterIP, where its Service has no port
	unallocated look // at an address of a ServiceCIDR that no Service has
	unlisted    look // of a client not in the source ranges of a VIP without endpoints
	unserved    look // at a NodePort without endpoints, on an address of the node that serves none
	ownEmpty    look // of the node itself, at a VIP or an externalIP without endpoints
	ping        look // at a ClusterIP
}

// look is a look at what a client sees of an address.
type look func(from, to string) step

// Nftables is the nature of nftables mode: it knows all addresses of Services,
// and leaves to others what they keep out.
func Nftables() Nature {
	return Nature{
		mode: "nftables", nodePorts: []string{"primary"}, loopback: route.LoopbackNamed,
		rules: nftRules{}, firewall: variant("nft"),
		otherPort: refused, unallocated: dropped, unlisted: dropped,
		unserved: untouched, ownEmpty: refused, ping: pingRefused,
	}
}

// Iptables is the nature of iptables mode with the programs of a variant, "nft"
// or "legacy": it knows what it balances and no more, and lives among the rules
// of others.
func Iptables(programs string) Nature {
	return Nature{
		mode: "iptables", nodePorts: []string{"all"}, loopback: route.LoopbackIncluded,
		rules: variant(programs), firewall: variant(programs),
		otherPort: untouched, unallocated: untouched, unlisted: refused,
		unserved: refused, ownEmpty: untouched, ping: pingUntouched,
	}
}

// otherPort looks at a ClusterIP, where its Service has no port.
func otherPort(from, to string) step {
	return func(e *env) error { return e.nature().otherPort(from, to)(e) }
}

// unallocated looks at an address of a ServiceCIDR that no Service has.
func unallocated(from, to string) step {
	return func(e *env) error { return e.nature().unallocated(from, to)(e) }
}

// unlisted looks at a VIP without endpoints, of a client that is not in its
// source ranges.
func unlisted(from, to string) step {
	return func(e *env) error { return e.nature().unlisted(from, to)(e) }
}

// unserved looks at a NodePort without endpoints, on an address of the node that
// serves no NodePorts.
func unserved(from, to string) step {
	return func(e *env) error { return e.nature().unserved(from, to)(e) }
}

// ownEmpty looks at a VIP or an externalIP without endpoints, from the node.
func ownEmpty(to string) step {
	return func(e *env) error { return e.nature().ownEmpty("node", to)(e) }
}

// pinged looks at what becomes of an ICMP echo to a ClusterIP.
func pinged(from, to string) step {
	return func(e *env) error { return e.nature().ping(from, to)(e) }
}

func (e *env) nature() *Nature { return &e.proxy.plane.Nature }

// kind tells planes apart, for what only one scenario asks of them.
type kind func(*Nature) bool

func inIptablesMode(n *Nature) bool { return n.mode == "iptables" }

// locking planes wait for others who change rules at the same time.
func locking(n *Nature) bool { return inIptablesMode(n) && n.firewall == "legacy" }

// fork is a step that is another one for planes of a kind.
type fork struct {
	kind  kind
	steps []step
}

// on has something be so for planes of a kind; what is so for all others follows:
//
//	on(inIptablesMode, reach(...)).otherwise(untouched(...))
func on(k kind, steps ...step) fork { return fork{k, steps} }

func (f fork) otherwise(steps ...step) step {
	return func(e *env) error {
		if f.kind(e.nature()) {
			return together(f.steps...)(e)
		}
		return together(steps...)(e)
	}
}
