package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/route"
)

// shortCut marks packets of pods and of this node that go to another virtual server than
// those of other clients: its first byte. The others identify the port of a Service.
const (
	shortCut     = ipvs.OwnMark
	shortCutMask = ipvs.OwnMarkMask
)

// tables returns the tables that the plane has rules in.
func tables() []string { return []string{"mangle", "nat", "filter"} }

// family has everything that differs between IPv4 and IPv6.
type family struct {
	ip       route.Family
	kernel   iptables.Family
	program  string
	loopback string
	ping     string // the protocol of an ICMP echo
}

func familyOf(ip route.Family) family {
	if ip == route.IPv6 {
		return family{ip, iptables.IPv6, "ip6tables", "::1/128", "ipv6-icmp"}
	}
	return family{ip, iptables.IPv4, "iptables", "127.0.0.0/8", "icmp"}
}

// fixed returns the entries that belong to no Service: the sets, and the chains that use
// them. A change of a Service changes members only.
func (f family) fixed(host *route.Host, opt Options) []entry {
	var list []entry
	kinds := setKinds(f.ip)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, entry{Key: key{class: set, family: f.ip, name: name}, Value: value{kind: kinds[name]}})
	}
	add := func(c class, name string, rules ...string) {
		var b strings.Builder
		for _, rule := range rules {
			b.WriteString(f.expand(rule, opt) + "\n")
		}
		list = append(list, entry{Key: key{class: c, family: f.ip, name: name}, Value: value{rules: b.String()}})
	}
	f.chains(host, opt, func(name string, rules ...string) { add(chain, name, rules...) })
	for _, rule := range jumps() {
		add(jump, rule)
	}
	return list
}

// expand replaces names in braces: {MASQ} is the mark for source NAT, {CUT} that of a
// short cut, {NAME} the set of this name.
func (f family) expand(rule string, opt Options) string {
	for {
		before, rest, found := strings.Cut(rule, "{")
		if !found {
			return rule
		}
		name, after, _ := strings.Cut(rest, "}")
		switch name {
		case "MASQ":
			name = fmt.Sprintf("%#x/%#x", opt.Mark, opt.Mark)
		case "CUT":
			name = fmt.Sprintf("%#x/%#x", uint32(shortCut), uint32(shortCutMask))
		default:
			name = setName(f.ip, name)
		}
		rule = before + name + after
	}
}

// jumps returns the jumps from the kernel's own chains, each with its table and chain.
func jumps() []string {
	const any = "-m comment --comment "
	return []string{
		"mangle PREROUTING " + any + `"kubernetes short cuts" -j KUBE-IPVS-SHORT-CUT`,
		"mangle OUTPUT " + any + `"kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER`,
		"nat PREROUTING " + any + `"kubernetes service portals" -j KUBE-SERVICES`,
		"nat OUTPUT " + any + `"kubernetes service portals" -j KUBE-SERVICES`,
		"nat POSTROUTING " + any + `"kubernetes postrouting rules" -j KUBE-POSTROUTING`,
		"filter INPUT " + any + `"kubernetes ipvs access filter" -j KUBE-IPVS-FILTER`,
		"filter INPUT " + any + `"kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`,
		"filter INPUT " + any + `"kubernetes health check rules" -j KUBE-NODE-PORT`,
		"filter FORWARD " + any + `"kubernetes forwarding rules" -j KUBE-FORWARD`,
		"filter FORWARD " + any + `"kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`,
	}
}

// chains calls add with each chain. IPVS takes packets after INPUT of filter, and packets of
// this node before OUTPUT of filter: what concerns those is in OUTPUT of mangle.
func (f family) chains(host *route.Host, opt Options, add func(name string, rules ...string)) {
	const fresh = "-m conntrack --ctstate NEW "
	pods := f.pods(host)

	var cuts, outside, known []string
	for _, from := range pods {
		cuts = append(cuts, from+fresh+"-j SET --map-set {SLUICE-SHORT-CUT} dst,dst --map-mark")
		outside = append(outside, from+"-j RETURN")
	}
	add("mangle KUBE-IPVS-SHORT-CUT", cuts...)
	ranges := []string{"-m set --match-set {LOAD-BALANCER-SOURCE-CIDR} dst,dst,src -j RETURN", "-j DROP"}
	const restricted = fresh + "-m set --match-set {LOAD-BALANCER-FW} dst,dst -j KUBE-SOURCE-RANGES-FIREWALL"
	add("mangle KUBE-SOURCE-RANGES-FIREWALL", ranges...)
	add("mangle KUBE-IPVS-OUT-FILTER",
		restricted,
		fresh+"-m set --match-set {SLUICE-DROP} dst,dst -j DROP",
		fresh+"-j SET --map-set {SLUICE-SHORT-CUT} dst,dst --map-mark")

	add("nat KUBE-MARK-MASQ", "-j MARK --set-xmark {MASQ}")
	add("nat KUBE-MARK-MASQ-NOT-POD", append(slices.Clip(outside), "-j KUBE-MARK-MASQ")...)
	add("nat KUBE-SERVICES", f.services(host)...)
	add("nat KUBE-LOAD-BALANCER",
		"-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
		"-m set --match-set {LOAD-BALANCER-LOCAL} dst,dst -j RETURN",
		"-j KUBE-MARK-MASQ")
	add("nat KUBE-NODE-PORT", nodePortRules()...)
	add("nat KUBE-POSTROUTING",
		"-m set --match-set {LOOP-BACK} dst,dst,src -j MASQUERADE --random-fully",
		"-m mark --mark {CUT} -m addrtype --src-type LOCAL -j MASQUERADE --random-fully",
		"-m mark --mark {CUT} -j RETURN",
		"-m mark ! --mark {MASQ} -j RETURN",
		fmt.Sprintf("-j MARK --set-xmark %#x/0x0", opt.Mark),
		`-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`)

	forward := []string{"-m conntrack --ctstate INVALID -j DROP", "-m mark --mark {MASQ} -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}
	if opt.KeepInvalid {
		forward = forward[1:]
	}
	add("filter KUBE-FORWARD", forward...)
	add("filter KUBE-NODE-PORT", "-p tcp -m set --match-set {HEALTH-CHECK-NODE-PORT} dst -j ACCEPT")
	add("filter KUBE-SOURCE-RANGES-FIREWALL", ranges...)
	add("filter KUBE-PROXY-FIREWALL", restricted)
	add("filter KUBE-NOT-LOCAL", append(slices.Clip(outside), "-j DROP")...)
	for _, name := range []string{clusterIPs, externalIPs, externalLocal, loadBalancers} {
		known = append(known, "-m set --match-set {"+name+"} dst,dst -j RETURN")
	}
	add("filter KUBE-IPVS-FILTER", append(append([]string{
		fresh + "-m set --match-set {SLUICE-DROP} dst,dst -j DROP",
		fresh + "-m set --match-set {SLUICE-NO-LOCAL} dst,dst -j KUBE-NOT-LOCAL",
	}, known...),
		"-p "+f.ping+" -j RETURN",
		fresh+"-m set --match-set {IPVS-IPS} dst -j REJECT")...)
}

// services returns the rules that mark packets for source NAT. A packet to an address on
// the interface of Services gets that address as its source, unless its program has bound
// another one. The backend cannot reply to it.
func (f family) services(host *route.Host) []string {
	cluster := "-m set --match-set {CLUSTER-IP} dst,dst "
	switch {
	case host.MasqueradeAll:
		cluster += "-j KUBE-MARK-MASQ"
	case host.Detector.Detects(f.ip):
		cluster += "-j KUBE-MARK-MASQ-NOT-POD"
	default:
		cluster = "-m set --match-set {IPVS-IPS} src " + cluster + "-j KUBE-MARK-MASQ"
	}
	list := []string{
		"-s " + f.loopback + " -j RETURN",
		"-m mark --mark {CUT} -j RETURN",
		"-m set --match-set {LOAD-BALANCER} dst,dst -j KUBE-LOAD-BALANCER",
		cluster,
		"-m set --match-set {EXTERNAL-IP} dst,dst -j KUBE-MARK-MASQ",
		"-m addrtype --src-type LOCAL -m set --match-set {EXTERNAL-IP-LOCAL} dst,dst -j KUBE-MARK-MASQ",
	}
	if host.NodePorts.All(f.ip) {
		return append(list, "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT")
	}
	for _, a := range nodeAddrs(host, f.ip) {
		list = append(list, "-d "+netip.PrefixFrom(a, a.BitLen()).String()+" -j KUBE-NODE-PORT")
	}
	return list
}

func nodePortRules() []string {
	var list []string
	for _, p := range []struct{ name, fields string }{{"TCP", "dst"}, {"UDP", "dst"}, {"SCTP", "dst,dst"}} {
		all, local := nodePortSets(p.name)
		match := func(set string) string {
			return "-p " + strings.ToLower(p.name) + " -m set --match-set {" + set + "} " + p.fields
		}
		list = append(list,
			match(all)+" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
			match(local)+" -j RETURN",
			match(all)+" -j KUBE-MARK-MASQ")
	}
	return list
}

// pods returns what matches packets of pods, one match for each rule.
func (f family) pods(host *route.Host) []string {
	d := host.Detector
	switch {
	case d.Interface != "":
		return []string{"-i " + d.Interface + " "}
	case d.Prefix != "":
		return []string{"-i " + d.Prefix + "+ "}
	}
	var list []string
	for _, cidr := range d.PodCIDRs {
		switch {
		case route.FamilyOf(cidr.Addr()) != f.ip:
		case cidr.Bits() == 0:
			list = append(list, "")
		default:
			list = append(list, "-s "+cidr.String()+" ")
		}
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
