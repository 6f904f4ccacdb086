package layer2

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Tables are rebuilt under another name, so that the old ones work until the new ones do.
type generation int

const generations = 2

func (g generation) name() string { return [...]string{"sluice-direct", "sluice-direct-2"}[g] }

// tables returns the tables of a generation.
func (g generation) tables() []nft.Table {
	return []nft.Table{
		{Family: nft.Netdev, Name: g.name()}, {Family: nft.IP4, Name: g.name()}, {Family: nft.IP6, Name: g.name()},
	}
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

func (s side) byClient(of subject) nft.Set {
	return nft.Set{Name: s.name(of.prefix() + "by-client"), Key: s.types(of)}
}

// subject is what is passed on.
type subject int

const (
	packets  subject = iota // with the port of a frontend
	portless                // ICMP errors about packets to the client, and fragments
)

func subjects() []subject { return []subject{packets, portless} }

func (of subject) prefix() string { return [...]string{"", "portless-"}[of] }

// types is the type of a key of frontends. Portless is the address alone: later fragments have no port, and nft has no
// words for a key that consists of parts of the packet in an ICMP error.
func (s side) types(of subject) []nft.Type {
	return [...][]nft.Type{{s.addr(), nft.Proto, nft.Port}, {s.addr()}}[of]
}

// key returns the fields with a key of frontends, and client those with the address and port of the client.
func (s side) key(of subject) []nft.Field {
	to := nft.Destination(s.ip)
	return [...][]nft.Field{{to, nft.NextHeader(s.ip), nft.DestinationPort()}, {to}}[of]
}

func (s side) client(of subject) (addr, port nft.Field) {
	if of == portless {
		return nft.EmbeddedDestination(s.ip), nft.EmbeddedDestinationPort(s.ip)
	}
	return nft.Source(s.ip), nft.SourcePort()
}

// stage is why a packet is passed on: direct.Choice has the node for each.
type stage int

const (
	entering stage = iota
	unknown
	lost
)

func (s side) stages() []stage {
	if s.entering {
		return []stage{entering}
	}
	return []stage{unknown, lost}
}

// slots is the map that leads from slots to nodes, after conntrack.
func (s side) slots(of subject, at stage) nft.Set {
	return nft.Set{
		Name: of.prefix() + [...]string{unknown: "owners", lost: "former"}[at],
		Key:  append(s.types(of), nft.Index), Data: []nft.Type{nft.Index},
	}
}

// owners is the map that leads from slots to the addresses of nodes on a device, for packets that enter: a second map
// from nodes to addresses would cost each of them a look-up.
func (s side) owners(of subject, on nft.Device) nft.Set {
	return nft.Set{
		Name: s.name(fmt.Sprintf("%sowners-%d", of.prefix(), on.Index)),
		Key:  append(s.types(of), nft.Index), Data: []nft.Type{s.addr()},
	}
}

// find returns the statement that sets the priority to the number of the node, from that of the slot.
func (s side) find(of subject, at stage) nft.Statement {
	return nft.SetPriority(s.slots(of, at).Name, append(s.key(of), nft.Priority())...)
}

func (s side) nodes(on nft.Device) nft.Set {
	return nft.Set{
		Name: fmt.Sprintf("nodes-%d", on.Index), Key: []nft.Type{nft.Index}, Data: []nft.Type{s.addr()},
	}
}

func peers() nft.Set { return nft.Set{Name: "peers", Key: []nft.Type{nft.Ether}} }

// outer is the set of addresses from which packets of the tunnel may come.
func (s side) outer() nft.Set { return nft.Set{Name: s.name("tunnel-ends"), Key: []nft.Type{s.addr()}} }

func (s side) sets(devices []nft.Device) []nft.Set {
	all := []nft.Set{s.vips()}
	if s.entering && s.ip == nft.IP4 {
		all = append(all, peers())
	}
	for _, of := range subjects() {
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

// layout is what the rules depend on, besides the sets.
type layout struct {
	devices  []nft.Device
	byClient bool   // a port has session affinity
	tunnel   uint16 // its UDP port; 0: there is none
}

func (l layout) equal(o layout) bool {
	return slices.Equal(l.devices, o.devices) && l.byClient == o.byClient
}

// prerouting is a chain of each generation.
const prerouting = "prerouting"

const (
	// hops is how many hops a packet gets that is passed on because this node does not know its connection. It loses one
	// each time, and one with no more than lastHops is not passed on: so there is no loop, whatever nodes believe, and
	// hops are left for the way to the pod.
	hops     = 16
	lastHops = hops - direct.Passes

	// afterConntrack is between conntrack (-200) and NAT (-100): an entry that is dropped here is never confirmed.
	afterConntrack = -150
)

// chains returns the chains of a generation.
func (g generation) chains(l layout) map[nft.Table][]nft.Chain {
	all := map[nft.Table][]nft.Chain{}
	for _, s := range sides() {
		t := s.table(g)
		if s.entering {
			all[t] = append(all[t], s.forward(l)...)
		} else {
			all[t] = append(all[t], s.pass(l.devices)...)
			if l.tunnel != 0 {
				all[t] = append(all[t], s.guard(l.tunnel))
			}
		}
	}
	netdev := nft.Table{Family: nft.Netdev, Name: g.name()}
	for _, d := range l.devices {
		all[netdev] = append(all[netdev], nft.Chain{
			Name: fmt.Sprintf("ingress-%d", d.Index), Hook: &nft.Hook{Type: "filter", Device: d.Name},
			Rules: []nft.Rule{side{nft.IP4, true}.enter(l), side{nft.IP6, true}.enter(l)},
		})
	}
	return all
}

// enter returns the rule for packets as a device receives them: those that another node has passed on already stay, and
// fragments, whose owner only session affinity tells.
func (s side) enter(l layout) nft.Rule {
	more := []nft.Statement{nft.HopsAbove(s.ip, 1), nft.Goto(s.name("forward"))}
	if s.ip == nft.IP4 && !l.byClient { // of IPv6, the next header says it
		more = append([]nft.Statement{nft.Whole()}, more...)
	}
	return nft.NewRule(append([]nft.Statement{
		nft.Of(s.ip), nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Not(nft.FromEther(peers().Name)),
	}, more...)...)
}

// forward returns the chains for packets that enter here: those of slots that other nodes own go there. What has no
// port comes last, so that other packets do not pay for it. Nor do they pay for session affinity that no port has.
func (s side) forward(l layout) []nft.Chain {
	in, clear := nft.Of(s.ip), nft.NewRule(nft.ClearPriority())
	choose := func(of subject) []nft.Rule {
		rules := s.choose(of, in)
		if !l.byClient {
			rules = rules[:1]
		}
		return rules
	}
	send := func(of subject, rules []nft.Rule) []nft.Rule {
		for _, d := range l.devices {
			to := nft.Forward(s.ip, d, s.owners(of, d).Name, append(s.key(of), nft.Priority())...)
			rules = append(rules, nft.NewRule(in, to))
		}
		return rules
	}
	toErrors := nft.NewRule(in, nft.ICMPError(s.ip), nft.Goto(s.name("errors")))
	errors := nft.Chain{Name: s.name("errors"), Rules: append(send(portless, choose(portless)), clear)}
	forward := nft.Chain{Name: s.name("forward"), Rules: append(send(packets, choose(packets)), toErrors, clear)}
	if !l.byClient {
		return []nft.Chain{errors, forward}
	}
	first := 0
	if s.ip == nft.IP6 { // there fragments have another next header
		first = len(forward.Rules) - 1
	}
	toFragments := nft.NewRule(in, nft.Fragment(s.ip), nft.Goto(s.name("fragments")))
	forward.Rules = slices.Insert(forward.Rules, first, toFragments)
	fragments := nft.Chain{Name: s.name("fragments"), Rules: append(send(portless, s.fragments(in)), clear)}
	return []nft.Chain{errors, fragments, forward}
}

// fragments returns rules that set the priority to the number of the slot of a fragment. Without session affinity it
// depends on the port, which only the first fragment has.
func (s side) fragments(in nft.Statement) []nft.Rule {
	byClient := nft.In(s.byClient(portless).Name, s.key(portless)...)
	return []nft.Rule{
		nft.NewRule(in, nft.Not(byClient), nft.Accept()),
		nft.NewRule(in, nft.DrawByHash(slots.Seed, 1, direct.Slots, nft.Source(s.ip))),
	}
}

// pass returns the chains for segments of TCP connections that this node does not know, and for ICMP errors about
// packets of these. They go to the owner, or to the owner before this node. This is a copy: the packet is dropped, so
// that conntrack forgets it.
func (s side) pass(devices []nft.Device) []nft.Chain {
	var pass []nft.Rule
	for _, d := range devices {
		pass = append(pass, nft.NewRule(nft.Copy(d, s.nodes(d).Name, nft.Priority()), nft.Drop()))
	}
	chains := []nft.Chain{{Name: "pass", Rules: append(pass, nft.NewRule(nft.ClearPriority()))}}
	hook := nft.Chain{Name: prerouting, Hook: &nft.Hook{
		Type: "filter", Point: nft.Prerouting, Priority: afterConntrack,
	}}
	for _, of := range subjects() {
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
			// Nft lists a comparison that follows another as a range.
			hook.Rules = append(hook.Rules, nft.NewRule(from, nft.In(s.vips().Name, nft.Destination(s.ip)),
				nft.HopsAbove(s.ip, c.above), nft.Goto(name)))
		}
	}
	// What is not translated would go back to the router, and come again, until it has no hops left.
	return append(chains, hook, nft.Chain{
		Name: "untranslated", Hook: &nft.Hook{Type: "filter", Point: nft.Forwarding},
		Rules: []nft.Rule{nft.NewRule(nft.Invalid(), nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Drop())},
	})
}

// guard returns the chain that drops packets of the tunnel that come from elsewhere than other nodes.
func (s side) guard(port uint16) nft.Chain {
	return nft.Chain{Name: "input", Hook: &nft.Hook{Type: "filter", Point: nft.Input}, Rules: []nft.Rule{
		nft.NewRule(nft.VXLAN(port, rtnl.TunnelNetwork), nft.Not(nft.In(s.outer().Name, nft.Source(s.ip))), nft.Drop()),
	}}
}

// choose returns rules that set the priority to the number of the slot, by address and port of the client, or by the
// address alone for session affinity. They begin with statements.
func (s side) choose(of subject, first ...nft.Statement) []nft.Rule {
	addr, port := s.client(of)
	draw := func(by ...nft.Field) nft.Statement { return nft.DrawByHash(slots.Seed, 1, direct.Slots, by...) }
	rule := func(more ...nft.Statement) nft.Rule { return nft.NewRule(append(slices.Clone(first), more...)...) }
	return []nft.Rule{rule(draw(addr, port)), rule(nft.In(s.byClient(of).Name, s.key(of)...), draw(addr))}
}

// keyOf returns the key of a frontend.
func keyOf(f *route.Frontend, p cluster.Protocol) string {
	return string(nft.Key{}.Addr(f.Addr).Proto(uint8(p)).Port(f.Port))
}
