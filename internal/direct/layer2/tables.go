package layer2

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// generation is one of two names of the tables. Tables are rebuilt under the other name, so that the old ones work
// until the new ones do.
type generation int

const generations = 2

func (g generation) name() string { return [...]string{"sluice-direct", "sluice-direct-2"}[g] }

// tables returns the tables of a generation.
func (g generation) tables() []nft.Table {
	return []nft.Table{
		{Family: nft.Netdev, Name: g.name()}, {Family: nft.IP4, Name: g.name()}, {Family: nft.IP6, Name: g.name()},
	}
}

// Tables returns the tables that this package may create.
func Tables() (all []nft.Table) {
	for g := range generation(generations) {
		all = append(all, g.tables()...)
	}
	return all
}

// side is one of the hooks at which packets of a family are passed on.
type side struct {
	ip       nft.Family
	entering bool // true: at the ingress of a device; false: after conntrack
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

// name returns the full name of a set or chain: a netdev table has both families.
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

// vips is the set of external addresses.
func (s side) vips() nft.Set { return nft.Set{Name: s.name("vips"), Key: []nft.Type{s.addr()}} }

// byClient is the set of frontends with session affinity.
func (s side) byClient(of keyKind) nft.Set {
	return nft.Set{Name: s.name(of.prefix() + "by-client"), Key: s.types(of)}
}

// keyKind is the kind of the key by which a packet finds its frontend.
type keyKind int

const (
	withPort keyKind = iota // address, protocol and port
	portless                // address only: for ICMP errors about packets to the client, and for fragments
)

func keyKinds() []keyKind { return []keyKind{withPort, portless} }

func (of keyKind) prefix() string { return [...]string{"", "portless-"}[of] }

// types returns the type of a key of frontends. A portless key is the address alone: later fragments have no port, and
// nft has no syntax for a key from fields of the packet in an ICMP error.
func (s side) types(of keyKind) []nft.Type {
	return [...][]nft.Type{{s.addr(), nft.Proto, nft.Port}, {s.addr()}}[of]
}

// key returns the packet fields of a key of frontends.
func (s side) key(of keyKind) []nft.Field {
	to := nft.Destination(s.ip)
	return [...][]nft.Field{{to, nft.NextHeader(s.ip), nft.DestinationPort()}, {to}}[of]
}

// client returns the packet fields of the address and port of the client.
func (s side) client(of keyKind) (addr, port nft.Field) {
	if of == portless {
		return nft.EmbeddedDestination(s.ip), nft.EmbeddedDestinationPort(s.ip)
	}
	return nft.Source(s.ip), nft.SourcePort()
}

// stage is the field of direct.Choice that has the next node of a packet.
type stage int

const (
	entering stage = iota // Choice.Entering
	unknown               // Choice.Unknown
	lost                  // Choice.Lost
)

func (s side) stages() []stage {
	if s.entering {
		return []stage{entering}
	}
	return []stage{unknown, lost}
}

// slots is the map from slots to the numbers of nodes, after conntrack.
func (s side) slots(of keyKind, at stage) nft.Set {
	return nft.Set{
		Name: of.prefix() + [...]string{unknown: "owners", lost: "former"}[at],
		Key:  append(s.types(of), nft.Index), Data: []nft.Type{nft.Index},
	}
}

// owners is the map from slots to the addresses of nodes on a device, for packets that enter. Numbers of nodes would
// cost these packets a second look-up.
func (s side) owners(of keyKind, on nft.Device) nft.Set {
	return nft.Set{
		Name: s.name(fmt.Sprintf("%sowners-%d", of.prefix(), on.Index)),
		Key:  append(s.types(of), nft.Index), Data: []nft.Type{s.addr()},
	}
}

// find returns the statement that replaces the slot in the priority by the number of its node.
func (s side) find(of keyKind, at stage) nft.Statement {
	return nft.SetPriority(s.slots(of, at).Name, append(s.key(of), nft.Priority())...)
}

// nodes is the map from the numbers of nodes on a device to their addresses.
func (s side) nodes(on nft.Device) nft.Set {
	return nft.Set{
		Name: fmt.Sprintf("nodes-%d", on.Index), Key: []nft.Type{nft.Index}, Data: []nft.Type{s.addr()},
	}
}

// peers is the set of the hardware addresses of nodes.
func peers() nft.Set { return nft.Set{Name: "peers", Key: []nft.Type{nft.Ether}} }

// outer is the set of accepted source addresses of tunnel packets.
func (s side) outer() nft.Set { return nft.Set{Name: s.name("tunnel-ends"), Key: []nft.Type{s.addr()}} }

func (s side) sets(devices []nft.Device) []nft.Set {
	all := []nft.Set{s.vips()}
	if s.entering && s.ip == nft.IP4 {
		all = append(all, peers())
	}
	for _, d := range devices {
		if s.entering {
			all = append(all, s.neighbours(d))
		}
	}
	for _, of := range keyKinds() {
		all = append(all, s.byClient(of))
		for _, d := range devices {
			if s.entering {
				all = append(all, s.owners(of, d))
			}
		}
		for _, at := range s.stages() {
			if !s.entering {
				all = append(all, s.slots(of, at))
			}
		}
	}
	if s.entering {
		return all
	}
	for _, d := range devices {
		all = append(all, s.nodes(d))
	}
	return append(all, s.outer())
}

// layout has the inputs of the rules.
type layout struct {
	devices  []nft.Device
	self     []netip.Addr // see reach
	byClient bool         // a port has session affinity
	tunnel   uint16       // UDP port of the tunnel; 0: no tunnel
}

func (l layout) equal(o layout) bool {
	return slices.Equal(l.devices, o.devices) && slices.Equal(l.self, o.self) && l.byClient == o.byClient &&
		l.tunnel == o.tunnel
}

// prerouting is the name of a chain that exists if a generation is complete.
const prerouting = "prerouting"

const (
	// hops is the TTL of a packet that is passed on because this node does not have its connection. Each node decrements
	// the TTL, and passes no packet on whose TTL is lastHops or less. So there is no loop, even if nodes disagree, and
	// enough hops are left for the way to the pod.
	hops     = 16
	lastHops = hops - direct.MaxPasses

	// afterConntrack is between conntrack (-200) and NAT (-100): the entry of a packet dropped here is never confirmed.
	afterConntrack = -150
)

// chains returns the chains of a generation.
func (g generation) chains(l layout) map[nft.Table][]nft.Chain {
	all := map[nft.Table][]nft.Chain{}
	for _, s := range sides() {
		t := s.table(g)
		if s.entering {
			all[t] = append(append(all[t], s.forward(l)...), s.answer(l))
		} else {
			all[t] = append(append(all[t], s.pass(l.devices)...), s.send()...)
			if l.tunnel != 0 {
				all[t] = append(all[t], s.guard(l.tunnel))
			}
		}
	}
	netdev := nft.Table{Family: nft.Netdev, Name: g.name()}
	v4, v6 := side{nft.IP4, true}, side{nft.IP6, true}
	for _, d := range l.devices {
		all[netdev] = append(all[netdev], nft.Chain{
			Name: fmt.Sprintf("ingress-%d", d.Index), Hook: &nft.Hook{Type: "filter", Device: d.Name},
			Rules: []nft.Rule{v4.enter(l), v6.enter(l), v4.toAnswer(), v6.toAnswer()},
		})
	}
	return all
}

// enter returns the rule for packets that a device receives. It ignores packets from other nodes. Without session
// affinity it also ignores IPv4 fragments, because their slot depends on the port.
func (s side) enter(l layout) nft.Rule {
	more := []nft.Statement{nft.HopsAbove(s.ip, 1), nft.Goto(s.name("forward"))}
	if s.ip == nft.IP4 && !l.byClient { // IPv6 fragments have another next header, which matches no frontend
		more = append([]nft.Statement{nft.Whole()}, more...)
	}
	return nft.NewRule(append([]nft.Statement{
		nft.Of(s.ip), nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Not(nft.FromEther(peers().Name)),
	}, more...)...)
}

// forward returns the chains that send packets to the owner of their slot, if that is another node. Rules for packets
// without a port come last, so that other packets do not pay for them. Rules for session affinity exist only if a port
// has it.
func (s side) forward(l layout) []nft.Chain {
	in, clear := nft.Of(s.ip), nft.NewRule(nft.ClearPriority())
	choose := func(of keyKind) []nft.Rule {
		rules := s.choose(of, in)
		if !l.byClient {
			rules = rules[:1]
		}
		return rules
	}
	send := func(of keyKind, rules []nft.Rule) []nft.Rule {
		for _, d := range l.devices {
			to := nft.Forward(s.ip, d, s.owners(of, d).Name, append(s.key(of), nft.Priority())...)
			rules = append(rules, nft.NewRule(in, to))
		}
		return rules
	}
	toErrors := nft.NewRule(in, nft.ICMPError(s.ip), nft.Goto(s.name("errors")))
	errors := nft.Chain{Name: s.name("errors"), Rules: append(send(portless, choose(portless)), clear)}
	forward := nft.Chain{Name: s.name("forward"), Rules: append(send(withPort, choose(withPort)), toErrors, clear)}
	if !l.byClient {
		return []nft.Chain{errors, forward}
	}
	first := 0
	if s.ip == nft.IP6 { // the other rules do not match fragments, which have another next header
		first = len(forward.Rules) - 1
	}
	toFragments := nft.NewRule(in, nft.Fragment(s.ip), nft.Goto(s.name("fragments")))
	forward.Rules = slices.Insert(forward.Rules, first, toFragments)
	fragments := nft.Chain{Name: s.name("fragments"), Rules: append(send(portless, s.fragments(in)), clear)}
	return []nft.Chain{errors, fragments, forward}
}

// fragments returns rules that set the priority to the slot of a fragment. They accept fragments for frontends without
// session affinity: their slot depends on the port, which only the first fragment has.
func (s side) fragments(in nft.Statement) []nft.Rule {
	byClient := nft.In(s.byClient(portless).Name, s.key(portless)...)
	return []nft.Rule{
		nft.NewRule(in, nft.Not(byClient), nft.Accept()),
		nft.NewRule(in, nft.DrawByHash(slots.Seed, 1, direct.Slots, nft.Source(s.ip))),
	}
}

// pass returns the chains for segments of TCP connections that this node does not have, and for ICMP errors about them.
// They send a copy to the owner or a former owner, and drop the packet, so that conntrack does not add an entry.
func (s side) pass(devices []nft.Device) []nft.Chain {
	var pass []nft.Rule
	for _, d := range devices {
		pass = append(pass, nft.NewRule(nft.Copy(d, s.nodes(d).Name, nft.Priority()), nft.Drop()))
	}
	chains := []nft.Chain{{Name: "pass", Rules: append(pass, nft.NewRule(nft.ClearPriority()))}}
	hook := nft.Chain{Name: prerouting, Hook: &nft.Hook{
		Type: "filter", Point: nft.Prerouting, Priority: afterConntrack,
	}}
	for _, of := range keyKinds() {
		first := [...][]nft.Statement{{nft.TCP()}, nil}[of]
		from := [...]nft.Statement{nft.Midstream(), nft.Unknown(s.ip)}[of]
		pass := func(at stage, more ...nft.Statement) nft.Rule {
			return nft.NewRule(append(append([]nft.Statement{s.find(of, at)}, more...), nft.Goto("pass"))...)
		}
		for _, c := range []struct {
			name  string
			above uint8
			rules []nft.Rule
		}{
			{"unknown", hops, []nft.Rule{pass(unknown, nft.SetHops(s.ip, hops))}},
			{"lost", lastHops, []nft.Rule{pass(lost), pass(unknown)}},
		} {
			name, rules := of.prefix()+c.name, append(s.choose(of, first...), c.rules...)
			chains = append(chains, nft.Chain{Name: name, Rules: append(rules, nft.NewRule(nft.ClearPriority()))})
			// The comparison of hops is not next to another comparison: nft would list both as a range.
			hook.Rules = append(hook.Rules, nft.NewRule(from, nft.In(s.vips().Name, nft.Destination(s.ip)),
				nft.HopsAbove(s.ip, c.above), nft.Goto(name)))
		}
	}
	// Packets that are not translated would loop between the router and this node until their TTL is 0.
	return append(chains, hook, nft.Chain{
		Name: "untranslated", Hook: &nft.Hook{Type: "filter", Point: nft.Forwarding},
		Rules: []nft.Rule{nft.NewRule(nft.Invalid(), nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Drop())},
	})
}

// guard returns the chain that drops tunnel packets that do not come from other nodes.
func (s side) guard(port uint16) nft.Chain {
	return nft.Chain{Name: "input", Hook: &nft.Hook{Type: "filter", Point: nft.Input}, Rules: []nft.Rule{
		nft.NewRule(nft.VXLAN(port, rtnl.TunnelNetwork), nft.Not(nft.In(s.outer().Name, nft.Source(s.ip))), nft.Drop()),
	}}
}

// choose returns rules that set the priority to the slot: by the address and port of the client, and for session
// affinity by the address alone. Each rule begins with the given statements.
func (s side) choose(of keyKind, first ...nft.Statement) []nft.Rule {
	addr, port := s.client(of)
	draw := func(by ...nft.Field) nft.Statement { return nft.DrawByHash(slots.Seed, 1, direct.Slots, by...) }
	rule := func(more ...nft.Statement) nft.Rule { return nft.NewRule(append(slices.Clone(first), more...)...) }
	return []nft.Rule{rule(draw(addr, port)), rule(nft.In(s.byClient(of).Name, s.key(of)...), draw(addr))}
}

// keyOf returns the key of a frontend.
func keyOf(f *route.Frontend, p cluster.Protocol) string {
	return string(nft.Key{}.Addr(f.Addr).Proto(uint8(p)).Port(f.Port))
}
