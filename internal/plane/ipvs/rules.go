package ipvs

import (
	_ "embed" // rules.txt
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

//go:embed rules.txt
var rulesText string

// shortCut marks packets of pods and of this node that go to another virtual server than
// those of other clients: its first byte. The others identify the port of a Service.
const (
	shortCut     = ipvs.OwnMark
	shortCutMask = ipvs.OwnMarkMask
)

// tableNames returns the tables that the plane has rules in, in the order in which they are written.
func tableNames() []string { return []string{"filter", "mangle", nat} }

// tableCount is the number of tables of both families.
const tableCount = 6

// table returns the number of the table of rules.
func (k key) table() ledger.Phase {
	n := slices.Index(tableNames(), k.name)
	if k.family == route.IPv6 {
		n += len(tableNames())
	}
	return ledger.Phase(n)
}

// fixed returns the entries that belong to no Service: the sets, and the rules that use them.
func fixed(ip route.Family, host *route.Host, opt Options) []entry {
	var list []entry
	kinds := setKinds(ip)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, entry{Key: key{class: set, family: ip, name: name}, Value: value{kind: kinds[name]}})
	}
	tables := iptables.Expand(rulesText, values(ip, host, opt))
	for _, name := range tableNames() {
		list = append(list, entry{
			Key: key{class: rules, family: ip, name: name}, Value: value{rules: owner().Ruleset(name, tables[name])},
		})
	}
	return list
}

// values returns what the names in rules.txt stand for.
func values(ip route.Family, host *route.Host, opt Options) map[string][]string {
	mark := func(value, mask uint32) []string { return []string{fmt.Sprintf("%#x/%#x", value, mask)} }
	v := map[string][]string{
		"new":        {"-m conntrack --ctstate NEW"},
		"masq":       mark(opt.Mark, opt.Mark),
		"toggle":     mark(opt.Mark, 0),
		"cut":        mark(shortCut, shortCutMask),
		"loopback":   {iptables.Family(ip).Loopback()},
		"ping":       {"icmp"}, // the protocol of an ICMP echo
		"pods":       pods(ip, host),
		"nodeports":  nodePorts(ip, host),
		"invalid":    {"-m conntrack --ctstate INVALID"},
		"own":        {""}, // all packets to ClusterIPs, or only those from an address of a Service
		"masquerade": {markMasq},
	}
	for name := range setKinds(ip) {
		v[name] = []string{setName(ip, name)}
	}
	if ip == route.IPv6 {
		v["ping"] = []string{"ipv6-icmp"}
	}
	if opt.KeepInvalid {
		v["invalid"] = nil
	}
	switch {
	case host.MasqueradeAll:
	case host.Detector.Detects(ip):
		v["masquerade"] = []string{"KUBE-MARK-MASQ-NOT-POD"}
	default:
		v["own"] = []string{"-m set --match-set {" + boundIPs + "} src "}
	}
	return v
}

// The names that rules of other programs may use, and the table that they are in.
const (
	nat         = "nat"
	markMasq    = "KUBE-MARK-MASQ"
	postrouting = "KUBE-POSTROUTING"
)

// owner selects the chains of kube-proxy in any mode, and the jumps to them from chains of the kernel.
func owner() iptables.Owner {
	return iptables.Owner{
		Chain: kubechain.Proxy,
		Jump: func(from iptables.Chain, target string) bool {
			return from.Builtin() && kubechain.Proxy(target) && target != markMasq
		},
	}
}

// existing selects what owner selects, except chains that the plane does not have and to
// which chains of other programs jump.
func existing(found, wanted iptables.Chains) iptables.Owner {
	o, used := owner(), usedByOthers(found)
	o.Chain = func(name string) bool {
		_, is := wanted[name]
		return kubechain.Proxy(name) && (is || !used[name])
	}
	return o
}

// usedByOthers returns the targets of rules in chains of other programs.
func usedByOthers(chains iptables.Chains) map[string]bool {
	used := map[string]bool{}
	for name, c := range chains {
		for _, rule := range c.Rules {
			if !kubechain.Proxy(name) && !c.Builtin() {
				used[iptables.Target(rule)] = true
			}
		}
	}
	return used
}

// balances reports whether rules of mode iptables lead packets to endpoints.
func balances(ruleset string) bool { return strings.Contains(ruleset, "\n:KUBE-SVC-") }

// pods returns what matches packets of pods, one match for each rule.
func pods(ip route.Family, host *route.Host) []string {
	d := host.Detector
	list := iptables.Family(ip).Sources(d.Interface, d.Prefix, d.PodCIDRs)
	for i := range list {
		list[i] += " "
	}
	return list
}

// nodePorts returns what matches packets to addresses that serve NodePorts.
func nodePorts(ip route.Family, host *route.Host) []string {
	if host.NodePorts.All(ip) {
		return []string{"-m addrtype --dst-type LOCAL"}
	}
	var list []string
	for _, a := range nodeAddrs(host, ip) {
		list = append(list, "-d "+netip.PrefixFrom(a, a.BitLen()).String())
	}
	return list
}

// nodeAddrs returns the addresses that serve NodePorts.
func nodeAddrs(host *route.Host, ip route.Family) []netip.Addr {
	var list []netip.Addr
	candidates := host.NodePorts.Addrs
	if host.NodePorts.All(ip) {
		candidates = host.Local
	}
	for _, a := range candidates {
		if route.FamilyOf(a) == ip && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	return list
}
