package layer2

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// probe removes the links to neighbours that do not answer probes. It begins a round of probes once in a pollPeriod.
func (f *Follower) probe(r *reach) {
	if time.Since(f.probed) >= pollPeriod {
		f.probed = time.Now()
		answered := map[linkKey]bool{}
		clear(f.unsent)
		for _, self := range r.self {
			var keys []linkKey
			var to []netip.Addr
			for key, p := range r.probes {
				if key.family == route.FamilyOf(self) {
					keys, to = append(keys, key), append(to, p.Addr)
				}
			}
			came, err := f.opt.Probe(self, to)
			for i, key := range keys {
				answered[key] = err == nil && came[i]
			}
			if err != nil {
				f.unsent[route.FamilyOf(self)] = err
			}
		}
		f.trusted = trust(f.trusted, answered)
	}
	r.distrust(f.trusted, f.unsent)
}

// patience is the number of rounds of probes after which a node that has answered none is not reached.
const patience = 5

// trust returns for how many more rounds each node is reached without an answer, after a round.
func trust(before map[linkKey]int, answered map[linkKey]bool) map[linkKey]int {
	after := map[linkKey]int{}
	for key, did := range answered {
		if after[key] = max(before[key]-1, 0); did {
			after[key] = patience
		}
	}
	return after
}

// doubted reports whether a node is reached that has not answered in the last round.
func doubted(trusted map[linkKey]int) bool {
	for _, rounds := range trusted {
		if 0 < rounds && rounds < patience {
			return true
		}
	}
	return false
}

// distrust removes the links to neighbours that do not answer probes, or cannot be sent any.
func (r *reach) distrust(trusted map[linkKey]int, unsent map[route.Family]error) {
	for key := range r.probes {
		if trusted[key] > 0 {
			continue
		}
		delete(r.links, key)
		r.why[key] = "it does not send back packets with foreign addresses: the network may check sources and " +
			"destinations, or Sluice is not ready there"
		if err := unsent[key.family]; err != nil {
			r.why[key] = err.Error()
		}
	}
}

// neighbours is the map from the hardware addresses of nodes on a device to their addresses, for probes.
func (s side) neighbours(on nft.Device) nft.Set {
	return nft.Set{
		Name: s.name(fmt.Sprintf("neighbours-%d", on.Index)), Key: []nft.Type{nft.Ether}, Data: []nft.Type{s.addr()},
	}
}

// probeTo returns the destination of probes on their way.
func (s side) probeTo() netip.Addr {
	v4, v6 := rtnl.ProbeTo()
	if s.ip == nft.IP4 {
		return v4
	}
	return v6
}

// send returns the chains that send copies of the probes of this node (rtnl.Links.Probe) with foreign addresses. Of the
// copies, the neighbour remains the next hop.
func (s side) send() []nft.Chain {
	chain := func(name string, at nft.Point, more ...nft.Statement) nft.Chain {
		rule := append([]nft.Statement{nft.FromHere(), nft.Between(rtnl.ProbePort)}, more...)
		return nft.Chain{
			Name: name, Hook: &nft.Hook{Type: "filter", Point: at, Priority: afterConntrack},
			Rules: []nft.Rule{nft.NewRule(rule...)},
		}
	}
	return []nft.Chain{
		chain("copy-probes", nft.Output, nft.Tracked(), nft.CopyToDestination(s.ip), nft.Drop()),
		chain("send-probes", nft.Postrouting, nft.SetSource(s.probeTo().Next()), nft.SetDestination(s.probeTo())),
	}
}

// toAnswer returns the rule for probes and answers that a device receives.
func (s side) toAnswer() nft.Rule {
	return nft.NewRule(nft.Of(s.ip), nft.To(s.probeTo()), nft.Goto(s.name("answer")))
}

// answer returns the chain that sends the probes of other nodes back, with a TTL of 1. Packets with this TTL are
// answers. They get the addresses of the nodes again, so that the socket of the daemon receives them.
func (s side) answer(l layout) nft.Chain {
	var probes, answers []nft.Rule
	rule := func(more ...nft.Statement) nft.Rule {
		return nft.NewRule(append([]nft.Statement{nft.Of(s.ip), nft.ForHost(), nft.FromEther(peers().Name)}, more...)...)
	}
	for _, d := range l.devices {
		from := s.neighbours(d).Name
		probes = append(probes, rule(nft.HopsAbove(s.ip, 1), nft.SetHops(s.ip, 2),
			nft.Forward(s.ip, d, from, nft.EtherSource())))
		for _, a := range l.self {
			if familyOf(route.FamilyOf(a)) == s.ip {
				answers = append(answers, rule(nft.SetSourceFrom(s.ip, from, nft.EtherSource()), nft.SetDestination(a),
					nft.Accept()))
			}
		}
	}
	return nft.Chain{Name: s.name("answer"), Rules: append(append(probes, answers...), nft.NewRule(nft.Drop()))}
}
