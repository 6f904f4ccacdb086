package iptables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/route"
)

// hostEntries returns the entries that belong to no Service: chains of our own, chains
// that Services share, and the jumps to both.
func (f *family) hostEntries(host *route.Host, opt Options) []entry {
	mark := fmt.Sprintf("%#x", opt.Mark)
	bits := mark + "/" + mark
	chain := func(t table, name string, rules ...string) entry {
		return entry{Key: key{table: t, chain: name}, Value: join(rules...)}
	}
	list := []entry{
		chain(filter, forward, f.forward(bits, opt)...),
		chain(nat, markMasq, "-j MARK --set-xmark "+bits),
		chain(nat, postrouting,
			"-m mark ! --mark "+bits+" -j RETURN",
			"-j MARK --set-xmark "+mark+"/0x0",
			`-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`),
	}
	if pods := f.pods(host); len(pods) > 1 {
		list = append(list, chain(nat, markOutside, notFrom(pods)...))
	}
	list = append(list,
		chain(filter, services), chain(filter, external), chain(filter, nodePorts), chain(filter, firewall))
	for _, e := range f.entrances {
		list = append(list, chain(nat, e.nodePorts), chain(nat, e.frontends, f.tail(e, host)...))
	}
	if f.isPortals() {
		list = append(list, chain(filter, nonLocal, f.guardListeners()...))
	}
	for _, t := range everyTable() {
		for _, name := range builtin(t) {
			var rules []string
			for _, jump := range f.jumps() {
				if jump.table == t && jump.chain == name {
					rules = append(rules, jump.rule)
				}
			}
			list = append(list, chain(t, name, rules...))
		}
	}
	return append(list, chain(filter, localnet))
}

// guards returns rules that are added once and never removed: kubelet adds the same ones,
// and has others in that chain. The first, for IPv4 only, keeps other hosts from
// 127.0.0.0/8, which becomes routable when it serves NodePorts (CVE-2020-8558).
func (f *family) guards(host *route.Host) []key {
	list := everyGuard()
	if !f.loopback(host) {
		return list[1:]
	}
	return list
}

func everyGuard() []key {
	return []key{
		{filter, localnet, `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`},
		{filter, "INPUT", "-j " + localnet},
		{filter, "OUTPUT", "-j " + localnet},
	}
}

// forward returns the rules for forwarded packets. Without the first, TCP segments
// outside of the window would reach clients untranslated.
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

// notFrom returns rules that mark packets from none of the sources.
func notFrom(pods []source) []string {
	var list []string
	for _, from := range pods {
		list = append(list, rule{from: from, target: "RETURN"}.String())
	}
	return append(list, rule{target: markMasq}.String())
}

// tail returns the last rules of the chain with the frontends: packets to this node that match
// no other frontend may be to a NodePort.
func (f *family) tail(e entrance, host *route.Host) []string {
	const note = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`
	var list []string
	if host.NodePorts.All(f.ip) {
		all := note + " -m " + toThisNode + " -j " + e.nodePorts
		if f.ip == route.IPv6 || !host.NodePorts.All127 {
			all = "! -d " + f.loopbackNet + " " + all
		}
		list = append(list, all)
	}
	for _, a := range f.nodeIPs(host) {
		list = append(list, "-d "+single(a)+" "+note+" -j "+e.nodePorts)
	}
	return list
}

// jumps returns the jumps from the kernel's own chains to ours, those of one chain in
// order.
func (f *family) jumps() []key {
	const (
		fresh = "-m conntrack --ctstate NEW -m comment --comment "
		any   = "-m comment --comment "

		// A packet that conntrack does not know, as other programs may want it (NOTRACK), was not translated.
		untranslated = "-m conntrack --ctstate INVALID,NEW,UNTRACKED -m comment --comment "
	)
	var list []key
	if f.isPortals() { // first, as another rule may match the port of a listener
		list = append(list, key{filter, "INPUT", untranslated + `"kubernetes service portals" -j ` + nonLocal})
	}
	list = append(list, []key{
		{filter, "INPUT", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "INPUT", any + `"kubernetes health check service ports" -j ` + nodePorts},
		{filter, "INPUT", fresh + `"kubernetes externally-visible service portals" -j ` + external},
		{filter, "FORWARD", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "FORWARD", any + `"kubernetes forwarding rules" -j ` + forward},
		{filter, "FORWARD", fresh + `"kubernetes service portals" -j ` + services},
		{filter, "FORWARD", fresh + `"kubernetes externally-visible service portals" -j ` + external},
		{filter, "OUTPUT", fresh + `"kubernetes load balancer firewall" -j ` + firewall},
		{filter, "OUTPUT", fresh + `"kubernetes service portals" -j ` + services},
		{nat, "POSTROUTING", any + `"kubernetes postrouting rules" -j ` + postrouting},
	}...)
	for _, e := range f.entrances {
		for _, hook := range e.hooks {
			list = append(list, key{nat, hook, any + `"kubernetes service portals" -j ` + e.frontends})
		}
	}
	return list
}

// builtin returns the kernel's own chains in which we have jumps.
func builtin(t table) []string {
	return [...][]string{
		filter: {"INPUT", "FORWARD", "OUTPUT"},
		nat:    {"PREROUTING", "OUTPUT", "POSTROUTING"},
		mangle: {"PREROUTING"},
	}[t]
}
