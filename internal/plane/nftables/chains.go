package nftables

import (
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

const (
	dstnat, srcnat    = -100, 100             // priorities of base chains, as nft has them
	rejected, dropped = "rejected", "dropped" // the chains of the verdicts, whose names are keywords of nft
	translates        = "at-"                 // before the name of a map of backends: the chain that looks it up
)

type builder struct {
	layout *layout
	ip     route.Family
	f      nft.Family // the same
	host   *route.Host
	mark   uint32
}

func (b builder) name(of object) string { return b.layout[of].Name }

// fixed returns the chains that do not depend on Services, each before those that jump to it.
func (b builder) fixed() []nft.Chain {
	chains := []nft.Chain{
		{Name: rejected, Rules: []nft.Rule{nft.NewRule(nft.Reject(b.f))}},
		{Name: dropped, Rules: []nft.Rule{nft.NewRule(nft.Drop())}},
	}
	for s := range spaces {
		all, outside := backendElement.in(s), outsideBackendElement.in(s)
		chains = append(chains, b.translation(all), b.translation(outside),
			nft.Chain{Name: b.name(affinityElement.in(s)), Rules: []nft.Rule{b.identify(s)}},
			b.recollection(all), b.recollection(outside))
	}
	jump := []nft.Rule{nft.NewRule(nft.Jump("services"))}
	return append(chains,
		nft.Chain{Name: "services", Rules: b.services()},
		nft.Chain{
			Name: "postrouting", Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: srcnat}, Rules: b.postrouting(),
		},
		nft.Chain{
			Name: "input", Hook: &nft.Hook{Type: "nat", Point: nft.Input, Priority: srcnat}, Rules: cleared(),
		},
		nft.Chain{Name: "prerouting", Hook: &nft.Hook{Type: "nat", Point: nft.Prerouting, Priority: dstnat}, Rules: jump},
		nft.Chain{Name: "output", Hook: &nft.Hook{Type: "nat", Point: nft.Output, Priority: dstnat}, Rules: jump})
}

// services returns the chain that every new connection passes once. Other ports at an address of
// this node belong to the node: they are never refused, even if the address is also a ClusterIP.
func (b builder) services() []nft.Rule {
	rules := []nft.Rule{nft.NewRule(b.follow(byAddress, frontendElement.in(byAddress))...)}
	all := b.host.NodePorts.All(b.ip)
	if all {
		rules = append(rules, b.nodePorts(nft.ToHere(), nft.Not(nft.ToLoopback(b.f))))
	}
	if !all || b.ip == route.IPv4 && b.host.NodePorts.Loopback4() { // package localnet keeps neighbours out
		rules = append(rules, b.nodePorts(nft.In(b.name(nodeIPElement), nft.Destination(b.f))))
	}
	return append(rules,
		nft.NewRule(nft.In(b.name(clusterIPElement), nft.Destination(b.f)), nft.Not(nft.ToHere()), nft.Goto(rejected)),
		nft.NewRule(nft.In(b.name(serviceCIDRElement), nft.Destination(b.f)), nft.Not(nft.ToHere()), nft.Goto(dropped)))
}

func (b builder) nodePorts(here ...nft.Statement) nft.Rule {
	return nft.NewRule(append(here, b.follow(byNodePort, frontendElement.in(byNodePort))...)...)
}

// follow looks up a packet in a map of actions, and continues in the chain of the action.
func (b builder) follow(s space, actions object) []nft.Statement {
	return []nft.Statement{
		nft.SetPriority(b.name(actions), s.key(b.f)...),
		nft.Dispatch(b.name(wayOf(actions)), nft.Priority()),
	}
}

// cleared returns the rule that clears the priority of translated connections.
func cleared() []nft.Rule { return []nft.Rule{nft.NewRule(nft.Translated(), nft.ClearPriority())} }

// postrouting masquerades marked connections, and those of a backend to itself. It clears the mark. Connections to a
// backend on this node from outside leave by input instead of postrouting. UDP keeps its port, so that two datagrams
// that a socket sends at the same time get the same one (draw).
func (b builder) postrouting() []nft.Rule {
	return append(cleared(),
		nft.NewRule(nft.Marked(b.mark), nft.UDP(), nft.MarkFlip(b.mark), nft.MasqueradeInPlace()),
		nft.NewRule(nft.Marked(b.mark), nft.MarkFlip(b.mark), nft.Masquerade()),
		nft.NewRule(
			nft.Translated(), nft.In(b.name(hairpinElement), nft.Source(b.f), nft.Destination(b.f)), nft.Masquerade()))
}

// chainsFor returns the chain of an action, behind further chains that it needs.
func (b builder) chainsFor(a action) []nft.Chain {
	s, chain := a.space(), nft.Chain{Name: a.chain()}
	if a.guarded() {
		allowed := nft.In(b.name(allowedRanges), append(s.key(b.f), nft.Source(b.f))...)
		chain.Rules = append(chain.Rules, nft.NewRule(nft.Not(allowed), nft.Drop()))
	}
	switch kind := a.kind(); {
	case a.sticky():
		return b.sticky(s, a, chain)
	case kind == kindSplit:
		return b.split(s, chain)
	case kind == kindOutside:
		chain.Rules = append(chain.Rules, b.draw(b.name(outsideBackendElement.in(s)), a)...)
	case kind >= kindPlain:
		chain.Rules = append(append(chain.Rules, b.before(kind)...), b.draw(b.name(backendElement.in(s)), a)...)
	case a.guarded():
		chain.Rules = append(chain.Rules, nft.NewRule(nft.Goto((a &^ guardBit).chain())))
	default:
		return nil // the chains of reject and drop are fixed
	}
	return []nft.Chain{chain}
}

// before returns the rules of a kind of actions that mark connections for source NAT.
func (b builder) before(kind uint16) []nft.Rule {
	switch kind {
	case kindMasquerade:
		return []nft.Rule{nft.NewRule(nft.MarkSet(b.mark))}
	case kindOffPod:
		return []nft.Rule{nft.NewRule(nft.Not(b.pod()), nft.MarkSet(b.mark))}
	}
	return nil
}

// draw chooses a row of backends: by the address of the client if the action says so, otherwise at random, and for UDP
// by a hash, so that two datagrams that a socket sends at the same time, such as questions for A and AAAA, get the same
// one. With different backends conntrack could not merge their entries, and would drop a datagram
// (nf_conntrack_core.c, nf_ct_resolve_clash). The look-up is in a chain that always exists: when
// another one begins to use a map, the kernel walks all of it (nf_tables_api.c, nf_tables_bind_set).
func (b builder) draw(backends string, a action) []nft.Rule {
	n, to := a.count(), nft.Goto(translates+backends)
	if a.hashes() {
		return []nft.Rule{nft.NewRule(nft.DrawByHash(slots.Seed, 1, n, nft.Source(b.f)), to)}
	}
	random := nft.NewRule(nft.Draw(1, n), to)
	if n == 1 {
		return []nft.Rule{random}
	}
	hash := nft.DrawByHash(slots.Seed, 1, n,
		nft.Source(b.f), nft.Destination(b.f), nft.SourcePort(), nft.DestinationPort())
	return []nft.Rule{nft.NewRule(nft.UDP(), hash, to), random}
}

// translation returns the chain that sends a connection to the chosen backend. If its row has been deleted
// since the choice, the first backend gets it; if there is none, the packet is dropped.
func (b builder) translation(backends object) nft.Chain {
	return nft.Chain{Name: translates + b.name(backends), Rules: append(b.translate(backends),
		nft.NewRule(nft.Draw(1, 1), b.toRow(backends)), nft.NewRule(nft.Drop()))}
}

// translate returns the rules that send a connection to the backend in the row with the number in the priority, if
// there is one. They count it, unless the set of counts is full.
func (b builder) translate(backends object) (rules []nft.Rule) {
	for _, c := range countings() {
		if c.of != backends {
			continue
		}
		count := []nft.Statement{nft.Count(b.name(c.set), b.row(backends)...), b.toRow(backends)}
		if c.set == oddCount {
			count = append([]nft.Statement{nft.LastBit(b.f, 1)}, count...)
		}
		rules = append(rules, nft.NewRule(count...))
	}
	return append(rules, nft.NewRule(b.toRow(backends)))
}

func (b builder) toRow(backends object) nft.Statement {
	return nft.TranslateFrom(b.f, b.name(backends), b.row(backends)...)
}

// row returns the key of a map of backends.
func (b builder) row(backends object) []nft.Field {
	return append(backends.space().key(b.f), nft.Priority())
}

// split applies one action for pods and this node, and another for all other clients.
func (b builder) split(s space, chain nft.Chain) []nft.Chain {
	inside := nft.Chain{
		Name: s.name() + "inside", Rules: orDrop([]nft.Rule{nft.NewRule(b.follow(s, insideElement.in(s))...)}),
	}
	if b.host.Detector.Detects(b.ip) {
		chain.Rules = append(chain.Rules, nft.NewRule(b.pod(), nft.Goto(inside.Name)))
	}
	chain.Rules = append(chain.Rules,
		nft.NewRule(nft.FromHere(), nft.MarkSet(b.mark), nft.Goto(inside.Name)),
		nft.NewRule(b.follow(s, outsideElement.in(s))...))
	chain.Rules = orDrop(chain.Rules)
	return []nft.Chain{inside, chain}
}

// orDrop completes a chain that is only reached through a frontend. A packet gets past its rules if
// the frontend changed between two look-ups. The client sends it again.
func orDrop(rules []nft.Rule) []nft.Rule { return append(rules, nft.NewRule(nft.Drop())) }

// pod returns the statement that matches pods by the host's detector.
func (b builder) pod() nft.Statement {
	switch d := b.host.Detector; {
	case d.Interface != "":
		return nft.FromInterface(d.Interface)
	case d.Prefix != "":
		return nft.FromPrefix(d.Prefix)
	}
	return nft.In(b.name(podRanges), nft.Source(b.f))
}
