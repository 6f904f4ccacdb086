package ipvs

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names an entry. Its class says which fields it has.
type key struct {
	class  class
	family route.Family // of sets, members and rules
	name   string       // of a set, without the family; of a table
	late   bool         // rules that are written after the addresses
	member ipset.Member
	server ipvs.Server
	at     netip.AddrPort // of a destination; the address on the interface
}

// class is a kind of objects in the kernel.
type class uint8

const (
	device      class = iota // the interface for addresses
	set                      // an ipset
	member                   // of a set
	rules                    // of iptables, in one table
	server                   // a virtual server
	destination              // of a virtual server
	address                  // on the interface
)

// value is the value of an entry. Its class says which fields it has.
type value struct {
	kind     ipset.Definition // of a set
	mark     uint32           // of a member
	rules    string           // a ruleset (iptables.Owner)
	settings ipvs.Settings    // of a virtual server
	weight   uint32           // of a destination
}

type (
	entry = ledger.Entry[key, value]
	step  = ledger.Step[key, value]
)

// The phases. Each writes entries of one class, and of rules those of one table, which iptables commits as a whole. An
// address leads to its virtual server, that to destinations, and packet marks to virtual servers. What refuses packets
// to an address, rules and members of sets, is there before its destinations, and goes after them.
const (
	deviceAdded ledger.Phase = 1 + iota
	setsAdded
	rulesWritten // and a phase for each further table
)

const (
	rangesAdded = rulesWritten + tableCount + iota
	guardsAdded
	membersAdded
	serversWritten
	destinationsWritten
	marksWritten
	addressesAdded
	lateRulesWritten
)

const (
	marksRemoved = lateRulesWritten + tableCount + iota
	destinationsRemoved
	serversRemoved
	addressesRemoved
	guardsRemoved
	membersRemoved
	rulesRemoved
)

const (
	setsRemoved = rulesRemoved + tableCount + iota
	deviceRemoved
)

func (k key) handling() ledger.Handling {
	switch k.class {
	case device:
		return ledger.Handling{Add: deviceAdded, Change: deviceAdded, Remove: deviceRemoved, Target: true}
	case set:
		return ledger.Handling{Add: setsAdded, Change: setsAdded, Remove: setsRemoved, Target: true}
	case rules:
		n, written := k.table(), rulesWritten
		if k.late {
			written = lateRulesWritten
		}
		return ledger.Handling{Add: written + n, Change: written + n, Remove: rulesRemoved + n, Target: true}
	case server:
		return ledger.Handling{Add: serversWritten, Change: serversWritten, Remove: serversRemoved}
	case destination:
		return ledger.Handling{Add: destinationsWritten, Change: destinationsWritten, Remove: destinationsRemoved}
	case address:
		return ledger.Handling{Add: addressesAdded, Change: addressesAdded, Remove: addressesRemoved, Shared: true}
	case member:
	}
	switch k.name {
	case circuits:
		return ledger.Handling{Add: marksWritten, Change: marksWritten, Remove: marksRemoved}
	case sourceCIDR:
		return ledger.Handling{Add: rangesAdded, Change: rangesAdded, Remove: membersRemoved}
	case firewalled, dropped, notLocal:
		return ledger.Handling{Add: guardsAdded, Change: guardsAdded, Remove: guardsRemoved}
	case loopBack, healthPorts, boundIPs:
		return ledger.Handling{Add: membersAdded, Change: membersAdded, Remove: membersRemoved, Target: true, Shared: true}
	}
	return ledger.Handling{Add: membersAdded, Change: membersAdded, Remove: membersRemoved}
}

func (k key) compare(o key) int {
	return cmp.Or(
		cmp.Compare(k.class, o.class), cmp.Compare(k.family, o.family), cmp.Compare(k.name, o.name),
		k.member.Addr.Compare(o.member.Addr), cmp.Compare(k.member.Protocol, o.member.Protocol),
		cmp.Compare(k.member.Port, o.member.Port), k.member.To.Compare(o.member.To),
		k.server.Addr.Compare(o.server.Addr), cmp.Compare(k.server.Mark, o.server.Mark),
		cmp.Compare(k.server.Protocol, o.server.Protocol), cmp.Compare(k.server.Port, o.server.Port),
		k.at.Compare(o.at),
	)
}

// The sets with kube-proxy's names and types.
const (
	loopBack      = "LOOP-BACK" // backends of this node, which may connect to themselves
	clusterIPs    = "CLUSTER-IP"
	externalIPs   = "EXTERNAL-IP"
	externalLocal = "EXTERNAL-IP-LOCAL" // without source NAT
	loadBalancers = "LOAD-BALANCER"
	balancerLocal = "LOAD-BALANCER-LOCAL" // of them, those without source NAT
	firewalled    = "LOAD-BALANCER-FW"    // of them, those with source ranges
	sourceCIDR    = "LOAD-BALANCER-SOURCE-CIDR"
	healthPorts   = "HEALTH-CHECK-NODE-PORT"
	boundIPs      = "IPVS-IPS" // the addresses on the interface
)

// The sets that kube-proxy does not have.
const (
	dropped  = "SLUICE-DROP"      // frontends whose connections are dropped
	notLocal = "SLUICE-NO-LOCAL"  // frontends for pods and this node only
	circuits = "SLUICE-SHORT-CUT" // frontends that lead pods and this node elsewhere than other clients
)

// nodePorts returns the sets for NodePorts of a protocol: for all of them, and those without source NAT. Members of
// SCTP have an address, as the kernel's bitmaps of ports have no SCTP.
func nodePortSets(protocol string) (all, local string) {
	protocol = strings.ToUpper(protocol)
	if protocol == "SCTP" {
		return "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH"
	}
	return "NODE-PORT-" + protocol, "NODE-PORT-LOCAL-" + protocol
}

// setKinds returns the sets of a family.
func setKinds(f route.Family) map[string]ipset.Definition {
	of := func(t ipset.Type) ipset.Definition {
		return ipset.Definition{Type: t, IPv6: f == route.IPv6 && t != ipset.Port}
	}
	all := map[string]ipset.Definition{
		loopBack: of(ipset.IPPortIP), sourceCIDR: of(ipset.IPPortNet), boundIPs: of(ipset.IP), healthPorts: of(ipset.Port),
	}
	for _, name := range []string{
		clusterIPs, externalIPs, externalLocal, loadBalancers, balancerLocal, firewalled, dropped, notLocal, circuits,
	} {
		all[name] = of(ipset.IPPort)
	}
	for protocol, t := range map[string]ipset.Type{"TCP": ipset.Port, "UDP": ipset.Port, "SCTP": ipset.IPPort} {
		every, local := nodePortSets(protocol)
		all[every], all[local] = of(t), of(t)
	}
	marked := all[circuits]
	marked.Marks = true
	all[circuits] = marked
	return all
}

// setName returns the name of a set in the kernel, which is at most 31 bytes long.
func setName(f route.Family, name string) string {
	const longest = 31
	if f == route.IPv6 {
		name = "6-" + name
	}
	name = "KUBE-" + name
	return name[:min(len(name), longest)]
}
