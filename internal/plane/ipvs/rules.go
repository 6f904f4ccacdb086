package ipvs

import (
	_ "embed" // rules.tmpl
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/template"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/route"
)

//go:embed rules.tmpl
var rulesText string

// shortCut marks packets of pods and of this node that go to another virtual server than
// those of other clients: its first byte. The others identify the port of a Service.
const (
	shortCut     = ipvs.OwnMark
	shortCutMask = ipvs.OwnMarkMask
)

// tableNames returns the tables that the plane has rules in.
func tableNames() []string { return []string{"mangle", "nat", "filter"} }

// family has everything that differs between IPv4 and IPv6.
type family struct {
	ip       route.Family
	kernel   iptables.Family
	program  string
	Loopback string
	Ping     string // the protocol of an ICMP echo
}

func familyOf(ip route.Family) family {
	if ip == route.IPv6 {
		return family{ip, iptables.IPv6, "ip6tables", "::1/128", "ipv6-icmp"}
	}
	return family{ip, iptables.IPv4, "iptables", "127.0.0.0/8", "icmp"}
}

// fixed returns the entries that belong to no Service: the sets, and the rules that use
// them.
func (f family) fixed(host *route.Host, opt Options) []entry {
	var list []entry
	kinds := setKinds(f.ip)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, entry{Key: key{class: set, family: f.ip, name: name}, Value: value{kind: kinds[name]}})
	}
	return append(list, entry{Key: key{class: rules, family: f.ip}, Value: value{rules: f.ruleset(host, opt)}})
}

// ruleset executes the template.
func (f family) ruleset(host *route.Host, opt Options) string {
	var b strings.Builder
	set := func(name string) string { return setName(f.ip, name) }
	rules := template.Must(template.New("rules").Funcs(template.FuncMap{"set": set}).Parse(rulesText))
	if err := rules.Execute(&b, f.settings(host, opt)); err != nil {
		panic(err) // rules.tmpl needs a field that settings lacks
	}
	return owner().Ruleset(iptables.Parse(b.String()))
}

// settings are what the template depends on.
type settings struct {
	family
	Masq, Toggle, Cut string   // marks with their masks
	KeepInvalid       bool     // packets that are invalid for conntrack
	Pods              []string // what matches packets of pods, each for one rule
	NodePorts         []string // what matches packets to addresses that serve NodePorts
	Protocols         []nodePortMatches
	Cluster           struct { // packets to ClusterIPs
		OwnVIPs bool // only those whose source is an address of a Service
		To      string
	}
}

// nodePortMatches match packets to NodePorts: to all of them, and those without source NAT.
type nodePortMatches struct{ Name, All, Local string }

func (f family) settings(host *route.Host, opt Options) settings {
	s := settings{
		family: f, KeepInvalid: opt.KeepInvalid, Pods: f.pods(host), NodePorts: f.nodePorts(host),
		Masq:   fmt.Sprintf("%#x/%#x", opt.Mark, opt.Mark),
		Toggle: fmt.Sprintf("%#x/0x0", opt.Mark),
		Cut:    fmt.Sprintf("%#x/%#x", uint32(shortCut), uint32(shortCutMask)),
	}
	for _, name := range []string{"tcp", "udp", "sctp"} {
		fields := " dst"
		if name == "sctp" {
			fields = " dst,dst"
		}
		all, local := nodePortSets(name)
		s.Protocols = append(s.Protocols, nodePortMatches{name, setName(f.ip, all) + fields, setName(f.ip, local) + fields})
	}
	s.Cluster.To = markMasq
	if !host.MasqueradeAll && host.Detector.Detects(f.ip) {
		s.Cluster.To = "KUBE-MARK-MASQ-NOT-POD"
	}
	s.Cluster.OwnVIPs = !host.MasqueradeAll && !host.Detector.Detects(f.ip)
	return s
}

// owner selects the chains of kube-proxy in any mode, and the jumps to them. Other
// programs jump to KUBE-MARK-MASQ as well.
func owner() iptables.Owner {
	return iptables.Owner{
		Chain: func(_, name string) bool { return kubechain.Proxy(name) },
		Jump:  func(_, target string) bool { return kubechain.Proxy(target) && target != markMasq },
	}
}

const (
	markMasq    = "KUBE-MARK-MASQ"
	postrouting = "KUBE-POSTROUTING"
)

// leaver is owner without the chains that masquerade packets, while rules of other
// programs jump to the first of them.
func leaver(tables map[string]iptables.Chains) iptables.Owner {
	all, marked := owner(), false
	for name, c := range tables["nat"] {
		marked = marked || !kubechain.Proxy(name) && slices.ContainsFunc(c.Rules, func(rule string) bool { return iptables.Target(rule) == markMasq })
	}
	stays := func(table, name string) bool {
		return marked && table == "nat" && (name == markMasq || name == postrouting)
	}
	return iptables.Owner{
		Chain: func(table, name string) bool { return all.Chain(table, name) && !stays(table, name) },
		Jump:  func(table, to string) bool { return all.Jump(table, to) && !stays(table, to) },
	}
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

// nodePorts returns what matches packets to addresses that serve NodePorts.
func (f family) nodePorts(host *route.Host) []string {
	if host.NodePorts.All(f.ip) {
		return []string{"-m addrtype --dst-type LOCAL"}
	}
	var list []string
	for _, a := range nodeAddrs(host, f.ip) {
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
