package layer2

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Tables are rebuilt under another name, so that the old ones work until the new ones do.
type generation int

const generations = 2

func (g generation) name() string { return [...]string{"sluice-direct", "sluice-direct-2"}[g] }

// tables returns the tables of a generation.
func (g generation) tables() []nft.Table {
	return []nft.Table{{Family: nft.Netdev, Name: g.name()}, {Family: nft.IP4, Name: g.name()}, {Family: nft.IP6, Name: g.name()}}
}

// Tables returns the tables that this package may make.
func Tables() (all []nft.Table) {
	for g := range generation(generations) {
		all = append(all, g.tables()...)
	}
	return all
}

// side is one of the places where a packet is passed on, of one family.
type side struct {
	ip       nft.Family
	entering bool // as a device receives it; false: after conntrack
}

func sides() []side {
	return []side{{nft.IP4, true}, {nft.IP4, false}, {nft.IP6, true}, {nft.IP6, false}}
}

func familyOf(f route.Family) nft.Family {
	if f == route.IPv4 {
		return nft.IP4
	}
	return nft.IP6
}

func (s side) table(g generation) nft.Table {
	if s.entering {
		return nft.Table{Family: nft.Netdev, Name: g.name()}
	}
	return nft.Table{Family: s.ip, Name: g.name()}
}

// name completes the name of a set or chain: a netdev table has both families.
func (s side) name(of string) string {
	if s.entering {
		return of + "-" + s.ip.String()
	}
	return of
}

func (s side) addr() nft.Type {
	if s.ip == nft.IP4 {
		return nft.Addr4
	}
	return nft.Addr6
}

// The sets of a side, and the one of all peers.

func (s side) vips() nft.Set { return nft.Set{Name: s.name("vips"), Key: []nft.Type{s.addr()}} }

func (s side) byClient() nft.Set {
	return nft.Set{Name: s.name("by-client"), Key: []nft.Type{s.addr(), nft.Proto, nft.Port}}
}

func (s side) owners() nft.Set {
	return nft.Set{
		Name: s.name("owners"), Key: []nft.Type{s.addr(), nft.Proto, nft.Port, nft.Index}, Data: []nft.Type{nft.Index},
	}
}

func (s side) nodes(on nft.Device) nft.Set {
	return nft.Set{
		Name: s.name(fmt.Sprintf("nodes-%d", on.Index)), Key: []nft.Type{nft.Index}, Data: []nft.Type{s.addr()},
	}
}

func peers() nft.Set { return nft.Set{Name: "peers", Key: []nft.Type{nft.Ether}} }

func (s side) sets(devices []nft.Device) []nft.Set {
	all := []nft.Set{s.vips(), s.byClient(), s.owners()}
	for _, d := range devices {
		all = append(all, s.nodes(d))
	}
	if s.entering && s.ip == nft.IP4 {
		all = append(all, peers())
	}
	return all
}

const (
	// hopsOfSecond is how many hops a packet has left that is passed on a second time. One with no more is never passed on
	// again, so there is no loop, whatever nodes believe. The owner forwards it to its pod, with hops to spare.
	hopsOfSecond = 5

	// afterConntrack is between conntrack (-200) and NAT (-100): an entry that is dropped here is never confirmed.
	afterConntrack = -150
)

// chains returns the chains of a generation.
func (g generation) chains(devices []nft.Device) map[nft.Table][]nft.Chain {
	all := map[nft.Table][]nft.Chain{}
	for _, s := range sides() {
		t := s.table(g)
		if s.entering {
			all[t] = append(all[t], s.forward(devices)...)
		} else {
			all[t] = append(all[t], s.pass(devices)...)
		}
	}
	netdev := nft.Table{Family: nft.Netdev, Name: g.name()}
	for _, d := range devices {
		all[netdev] = append(all[netdev], nft.Chain{
			Name: fmt.Sprintf("ingress-%d", d.Index), Hook: &nft.Hook{Type: "filter", Device: d.Name},
			Rules: []nft.Rule{
				nft.NewRule(nft.In(peers().Name, nft.FromEther()), nft.Accept()), // passed on already
				nft.NewRule(nft.Of(nft.IP4), nft.Goto("ip")),
				nft.NewRule(nft.Of(nft.IP6), nft.Goto("ip6")),
			},
		})
	}
	return all
}

// forward returns the chains for packets as a device receives them: those of slots that other nodes own go there.
func (s side) forward(devices []nft.Device) []nft.Chain {
	in := nft.Of(s.ip)
	rules := []nft.Rule{nft.NewRule(in, nft.Not(nft.In(s.vips().Name, nft.Destination(s.ip))), nft.Accept())}
	if s.ip == nft.IP4 { // of IPv6, the next header says it
		rules = append(rules, nft.NewRule(in, nft.Fragment(), nft.Accept()))
	}
	choose := append(s.choose(in, nft.Source(s.ip), nft.SourcePort()),
		nft.NewRule(in, nft.SetPriority(s.owners().Name, append(s.key(), nft.Priority())...)))
	for _, d := range devices {
		choose = append(choose, nft.NewRule(in, nft.HopsAbove(s.ip, 1), nft.Forward(s.ip, d, s.nodes(d).Name, nft.Priority())))
	}
	rules = append(rules, choose...)
	return []nft.Chain{{Name: s.ip.String(), Rules: append(rules, nft.NewRule(nft.ClearPriority()))}}
}

// pass returns the chains for segments of TCP connections that this node does not know: they go to the owner, or to the
// owner before this node. The copy has fewer hops, and the packet is dropped, so conntrack forgets it.
func (s side) pass(devices []nft.Device) []nft.Chain {
	pass := []nft.Rule{nft.NewRule(nft.SetHops(s.ip, hopsOfSecond))}
	for _, d := range devices {
		pass = append(pass, nft.NewRule(nft.Copy(d, s.nodes(d).Name, nft.Priority()), nft.Drop()))
	}
	second := append(s.choose(nft.Statement{}, nft.Source(s.ip), nft.SourcePort()),
		nft.NewRule(nft.SetPriority(s.owners().Name, append(s.key(), nft.Priority())...), nft.Goto("pass")),
		nft.NewRule(nft.ClearPriority()))
	return []nft.Chain{
		{Name: "pass", Rules: append(pass, nft.NewRule(nft.ClearPriority()))},
		{Name: "unknown", Rules: second},
		{
			Name: "prerouting", Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: afterConntrack},
			Rules: []nft.Rule{nft.NewRule(nft.Midstream(), nft.HopsAbove(s.ip, hopsOfSecond),
				nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Goto("unknown"))},
		},
	}
}

// choose returns rules that set the priority to the number of the slot, by address and port of the client, or by the
// address alone for session affinity.
func (s side) choose(in nft.Statement, addr, port nft.Field) []nft.Rule {
	return []nft.Rule{
		nft.NewRule(in, nft.DrawByHash(slots.Seed, 1, direct.Slots, addr, port)),
		nft.NewRule(in, nft.In(s.byClient().Name, s.key()...), nft.DrawByHash(slots.Seed, 1, direct.Slots, addr)),
	}
}

// key returns the fields that identify a frontend.
func (s side) key() []nft.Field {
	return []nft.Field{nft.Destination(s.ip), nft.NextHeader(s.ip), nft.DestinationPort()}
}

// keyOf returns the key of a frontend.
func keyOf(f *route.Frontend, p cluster.Protocol) string {
	return string(nft.Key{}.Addr(f.Addr).Proto(uint8(p)).Port(f.Port))
}
