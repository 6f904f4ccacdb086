package iptables

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// shared are the chains that have rules of all Services, with the rules that
// come after those.
func (f *family) shared(host *route.Host) []chain {
	return []chain{
		{table: filter, name: services},
		{table: filter, name: external},
		{table: filter, name: nodePorts},
		{table: filter, name: firewall},
		{table: nat, name: nodePorts},
		{table: nat, name: services, rules: f.tail(host)},
	}
}

// fixed are the chains that have nothing to do with single Services.
func (f *family) fixed(host *route.Host, opt Options) []chain {
	mark := fmt.Sprintf("%#x", opt.Mark)
	bits := mark + "/" + mark
	list := []chain{
		{table: filter, name: forward, rules: f.forward(bits, opt)},
		{table: nat, name: markMasq, rules: []string{"-j MARK --set-xmark " + bits}},
		{table: nat, name: postrouting, rules: []string{
			"-m mark ! --mark " + bits + " -j RETURN",
			"-j MARK --set-xmark " + mark + "/0x0",
			`-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`,
		}},
	}
	if pods := f.pods(host); len(pods) > 1 {
		list = append(list, chain{table: nat, name: markOutside, rules: notFrom(pods)})
	}
	return list
}

// guards are rules that only have to be there, and stay, in the order in which
// they are put in front of others: kubelet makes the same ones, and has others in
// that chain. The first, which is of IPv4 only, keeps neighbours from 127.0.0.0/8,
// which can be routed as soon as it serves NodePorts (CVE-2020-8558).
func (f *family) guards(host *route.Host) []line {
	list := everyGuard()
	if !f.loopback(host) {
		return list[1:]
	}
	return list
}

func everyGuard() []line {
	return []line{
		{filter, localnet, `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`},
		{filter, "INPUT", "-j " + localnet},
		{filter, "OUTPUT", "-j " + localnet},
	}
}

// forward are the rules for packets on their way through this node. Without the
// first, segments outside of the window would reach clients untranslated.
func (f *family) forward(bits string, opt Options) []string {
	invalid := `-m conntrack --ctstate INVALID`
	if f.counting {
		invalid += ` -m nfacct --nfacct-name ` + InvalidDropped
	}
	list := []string{
		invalid + ` -j DROP`,
		`-m comment --comment "kubernetes forwarding rules" -m mark --mark ` + bits + ` -j ACCEPT`,
		`-m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
	}
	if opt.KeepInvalid {
		return list[1:]
	}
	return list
}

// notFrom marks what comes from none of the sources.
func notFrom(pods []source) []string {
	var list []string
	for _, from := range pods {
		list = append(list, rule{from: from, target: "RETURN"}.String())
	}
	return append(list, rule{target: markMasq}.String())
}

// tail are the last rules of nat KUBE-SERVICES: a NodePort is any packet to this
// node that no other front wants.
func (f *family) tail(host *route.Host) []string {
	const note = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`
	var list []string
	if host.NodePorts.All(f.ip) {
		all := note + " -m addrtype --dst-type LOCAL -j " + nodePorts
		if f.ip == route.IPv6 || !host.NodePorts.All127 {
			all = "! -d " + f.loopbackNet + " " + all
		}
		list = append(list, all)
	}
	for _, a := range f.nodeIPs(host) {
		list = append(list, "-d "+single(a)+" "+note+" -j "+nodePorts)
	}
	return list
}

// jumps are the rules of the kernel's own chains that lead to ours; those of one
// chain in their order.
func jumps() []line {
	const (
		fresh = "-m conntrack --ctstate NEW -m comment --comment "
		any   = "-m comment --comment "
	)
	return []line{
		{filter, "INPUT", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "INPUT", any + `"kubernetes health check service ports" -j ` + nodePorts},
		{filter, "INPUT", fresh + `"kubernetes externally-visible service portals" -j ` + external},
		{filter, "FORWARD", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "FORWARD", any + `"kubernetes forwarding rules" -j ` + forward},
		{filter, "FORWARD", fresh + `"kubernetes service portals" -j ` + services},
		{filter, "FORWARD", fresh + `"kubernetes externally-visible service portals" -j ` + external},
		{filter, "OUTPUT", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "OUTPUT", fresh + `"kubernetes service portals" -j ` + services},
		{nat, "PREROUTING", any + `"kubernetes service portals" -j ` + services},
		{nat, "OUTPUT", any + `"kubernetes service portals" -j ` + services},
		{nat, "POSTROUTING", any + `"kubernetes postrouting rules" -j ` + postrouting},
	}
}

// builtin are the kernel's own chains that jumps are in.
func builtin(t table) []string {
	var list []string
	for _, j := range jumps() {
		if j.table == t && !slices.Contains(list, j.chain) {
			list = append(list, j.chain)
		}
	}
	return list
}
