package iptables

import (
	_ "embed" // rules.txt
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
)

//go:embed rules.txt
var rulesText string

// hostEntries returns the entries that belong to no Service: chains of our own, chains that Services share, and the
// jumps to both.
func (f *family) hostEntries(host *route.Host, opt Options) []entry {
	tables := iptables.Expand(rulesText, f.values(host, opt))
	var list []entry
	for _, t := range everyTable() {
		chains := tables[t.String()]
		own := slices.DeleteFunc(slices.Sorted(maps.Keys(chains)), func(name string) bool { return !key{chain: name}.ours() })
		for _, name := range append(own, builtin(t)...) {
			list = append(list, entry{Key: key{table: t, chain: name}, Value: join(chains[name].Rules...)})
		}
	}
	list = append(list,
		entry{Key: key{filter, "INPUT", "-j " + localnet}}, entry{Key: key{filter, "OUTPUT", "-j " + localnet}})
	if f.guarded {
		list = append(list, entry{Key: guard()})
	}
	return list
}

// values returns what the names in rules.txt stand for.
func (f *family) values(host *route.Host, opt Options) map[string][]string {
	mark := fmt.Sprintf("%#x", opt.Mark)
	v := map[string][]string{
		"comment":  {"-m comment --comment "},
		"new":      {"-m conntrack --ctstate NEW "},
		"masq":     {mark + "/" + mark},
		"toggle":   {mark + "/0x0"},
		"arriving": {f.entrances[0].frontends},
		"leaving":  {f.entrances[len(f.entrances)-1].frontends},
	}
	for _, e := range f.entrances {
		v["frontends"], v["nodeports"] = append(v["frontends"], e.frontends), append(v["nodeports"], e.nodePorts)
		v["tail"] = append(v["tail"], f.tail(e, host)...)
	}
	switch {
	case opt.KeepInvalid:
	case f.counting:
		v["invalid"] = []string{"-m nfacct --nfacct-name " + InvalidDropped + " "}
	default:
		v["invalid"] = []string{""}
	}
	if f.isPortals() {
		v["guard"], v["listener"] = []string{nonLocal}, []string{single(f.listener)}
	}
	if pods := f.pods(host); len(pods) > 1 {
		v["outside"] = []string{markOutside}
		for _, from := range pods {
			v["pods"] = append(v["pods"], from+" ")
		}
	}
	return v
}

// guard is the rule that keeps other hosts from 127.0.0.0/8, which becomes routable when it serves NodePorts
// (CVE-2020-8558). It is never removed: kubelet adds it as well, to a chain that has others of it.
func guard() key {
	return key{filter, localnet, `! -s 127.0.0.0/8 -d 127.0.0.0/8 ` +
		`-m comment --comment "block incoming localnet connections" ` +
		`-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`}
}

// tail returns the last rules of the chain with the frontends, each after its name: packets to this
// node that match no other frontend may be to a NodePort.
func (f *family) tail(e entrance, host *route.Host) []string {
	const note = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"`
	var list []string
	if host.NodePorts.All(f.ip) {
		except := ""
		if f.ip == route.IPv6 || !host.NodePorts.All127 {
			except = "! -d " + f.kernel.Loopback() + " "
		}
		list = append(list, e.frontends+" "+except+note+" -m "+toThisNode+" -j "+e.nodePorts)
	}
	for _, a := range host.NodePorts.Of(f.ip) {
		list = append(list, e.frontends+" -d "+single(a)+" "+note+" -j "+e.nodePorts)
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
