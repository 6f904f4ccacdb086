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

func (s side) byClient() nft.Set {
	return nft.Set{Name: s.name("by-client"), Key: []nft.Type{s.addr(), nft.Proto, nft.Port}}
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

// slots is the map that leads from slots to nodes.
func (s side) slots(at stage) nft.Set {
	return nft.Set{
		Name: s.name([...]string{"owners", "owners", "former"}[at]),
		Key:  []nft.Type{s.addr(), nft.Proto, nft.Port, nft.Index}, Data: []nft.Type{nft.Index},
	}
}

func (s side) nodes(on nft.Device) nft.Set {
	return nft.Set{
		Name: s.name(fmt.Sprintf("nodes-%d", on.Index)), Key: []nft.Type{nft.Index}, Data: []nft.Type{s.addr()},
	}
}

func peers() nft.Set { return nft.Set{Name: "peers", Key: []nft.Type{nft.Ether}} }

// outer is the set of addresses from which packets of the tunnel may come.
func (s side) outer() nft.Set { return nft.Set{Name: s.name("tunnel-ends"), Key: []nft.Type{s.addr()}} }

func (s side) sets(devices []nft.Device) []nft.Set {
	all := []nft.Set{s.vips(), s.byClient()}
	for _, at := range s.stages() {
		all = append(all, s.slots(at))
	}
	for _, d := range devices {
		all = append(all, s.nodes(d))
	}
	if s.entering && s.ip == nft.IP4 {
		all = append(all, peers())
	}
	if !s.entering {
		all = append(all, s.outer())
	}
	return all
}

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
func (g generation) chains(c *content) map[nft.Table][]nft.Chain {
	all := map[nft.Table][]nft.Chain{}
	for _, s := range sides() {
		t := s.table(g)
		if s.entering {
			all[t] = append(all[t], s.forward(c.devices))
		} else {
			all[t] = append(all[t], s.pass(c.devices)...)
			if c.tunnel != 0 {
				all[t] = append(all[t], s.guard(c.tunnel))
			}
		}
	}
	s4, s6 := side{nft.IP4, true}, side{nft.IP6, true}
	netdev := nft.Table{Family: nft.Netdev, Name: g.name()}
	for _, d := range c.devices {
		all[netdev] = append(all[netdev], nft.Chain{
			Name: fmt.Sprintf("ingress-%d", d.Index), Hook: &nft.Hook{Type: "filter", Device: d.Name},
			Rules: []nft.Rule{
				nft.NewRule(nft.FromEther(peers().Name), nft.Accept()), // passed on already
				nft.NewRule(nft.Of(nft.IP4), nft.Goto(s4.name("forward"))),
				nft.NewRule(nft.Of(nft.IP6), nft.Goto(s6.name("forward"))),
			},
		})
	}
	return all
}

// forward returns the chain for packets as a device receives them: those of slots that other nodes own go there.
func (s side) forward(devices []nft.Device) nft.Chain {
	in := nft.Of(s.ip)
	rules := []nft.Rule{nft.NewRule(in, nft.Not(nft.In(s.vips().Name, nft.Destination(s.ip))), nft.Accept())}
	if s.ip == nft.IP4 { // of IPv6, the next header says it
		rules = append(rules, nft.NewRule(in, nft.Fragment(), nft.Accept()))
	}
	rules = append(append(rules, s.choose(in)...),
		nft.NewRule(in, nft.SetPriority(s.slots(entering).Name, append(s.key(), nft.Priority())...)))
	for _, d := range devices {
		rules = append(rules, nft.NewRule(in, nft.HopsAbove(s.ip, 1), nft.Forward(s.ip, d, s.nodes(d).Name, nft.Priority())))
	}
	return nft.Chain{Name: s.name("forward"), Rules: append(rules, nft.NewRule(nft.ClearPriority()))}
}

// pass returns the chains for segments of TCP connections that this node does not know: they go to the owner, or to the
// owner before this node. This is a copy: the packet is dropped, so that conntrack forgets it.
func (s side) pass(devices []nft.Device) []nft.Chain {
	var pass []nft.Rule
	for _, d := range devices {
		pass = append(pass, nft.NewRule(nft.Copy(d, s.nodes(d).Name, nft.Priority()), nft.Drop()))
	}
	chains := []nft.Chain{{Name: "pass", Rules: append(pass, nft.NewRule(nft.ClearPriority()))}}
	prerouting := nft.Chain{Name: "prerouting", Hook: &nft.Hook{
		Type: "filter", Point: nft.Prerouting, Priority: afterConntrack,
	}}
	lookUp := func(at stage, more ...nft.Statement) nft.Rule {
		find := nft.SetPriority(s.slots(at).Name, append(s.key(), nft.Priority())...)
		return nft.NewRule(append(append([]nft.Statement{find}, more...), nft.Goto("pass"))...)
	}
	for _, c := range []struct {
		name  string
		above uint8
		rules []nft.Rule
	}{
		{"unknown", hops, []nft.Rule{lookUp(unknown, nft.SetHops(s.ip, hops))}},
		{"lost", lastHops, []nft.Rule{lookUp(lost), lookUp(unknown)}},
	} {
		rules := append(s.choose(nft.TCP()), c.rules...)
		chains = append(chains, nft.Chain{Name: c.name, Rules: append(rules, nft.NewRule(nft.ClearPriority()))})
		prerouting.Rules = append(prerouting.Rules, nft.NewRule(nft.Midstream(), nft.HopsAbove(s.ip, c.above),
			nft.In(s.vips().Name, nft.Destination(s.ip)), nft.Goto(c.name)))
	}
	return append(chains, prerouting)
}

// guard returns the chain that drops packets of the tunnel that come from elsewhere than other nodes.
func (s side) guard(port uint16) nft.Chain {
	return nft.Chain{Name: "input", Hook: &nft.Hook{Type: "filter", Point: nft.Input}, Rules: []nft.Rule{
		nft.NewRule(nft.UDP(), nft.ToPort(port), nft.Not(nft.In(s.outer().Name, nft.Source(s.ip))), nft.Drop()),
	}}
}

// choose returns rules that set the priority to the number of the slot, by address and port of the client, or by the
// address alone for session affinity. They begin with a statement.
func (s side) choose(first nft.Statement) []nft.Rule {
	draw := func(of ...nft.Field) nft.Statement { return nft.DrawByHash(slots.Seed, 1, direct.Slots, of...) }
	return []nft.Rule{
		nft.NewRule(first, draw(nft.Source(s.ip), nft.SourcePort())),
		nft.NewRule(first, nft.In(s.byClient().Name, s.key()...), draw(nft.Source(s.ip))),
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
