package nftables

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// renderer renders Services, and a host, into entries. It remembers the chains it made:
// many frontends lead to few of them.
type renderer struct {
	layout   *layout
	builders []builder
	chains   map[key]nft.Chain
	actions  map[actionKey][]entry
	of       map[key]action // of the chains for actions
}

// actionKey names an action at a level.
type actionKey struct {
	ip    route.Family
	level int
	to    action
}

func newRenderer(l *layout, families []family, host route.Host, mark uint32) *renderer {
	r := &renderer{layout: l, chains: map[key]nft.Chain{}, actions: map[actionKey][]entry{}, of: map[key]action{}}
	for _, f := range families {
		r.builders = append(r.builders, builder{family: f, layout: l, host: &host, mark: mark})
	}
	return r
}

// merge adds the chains of another renderer for the same host.
func (r *renderer) merge(other *renderer) {
	maps.Copy(r.chains, other.chains)
	maps.Copy(r.actions, other.actions)
	maps.Copy(r.of, other.of)
}

func (r *renderer) enabled(ip route.Family) bool { return r.builder(ip) != nil }

func (r *renderer) builder(ip route.Family) *builder {
	for i := range r.builders {
		if r.builders[i].ip == ip {
			return &r.builders[i]
		}
	}
	return nil
}

// chain renders a chain.
func (r *renderer) chain(k key, c nft.Chain) entry {
	r.chains[k] = c
	var b strings.Builder
	for _, rule := range c.Rules {
		b.WriteString(rule.String())
		b.WriteByte('\n')
	}
	return entry{Key: k, Value: b.String()}
}

// action renders what frontends need that have an action: the element that leads to a
// chain, and the chain with those it needs.
func (r *renderer) action(ip route.Family, level int, to action) []entry {
	at := actionKey{ip, level, to}
	if list, known := r.actions[at]; known {
		return list
	}
	lead := key{ip, actionElement + object(level), to.data()}
	list := []entry{{Key: lead, Value: to.chain(r.layout)}}
	for _, c := range r.builder(ip).chainsFor(to) {
		k := key{ip, actionChain, c.Name}
		list = append(list, r.chain(k, c))
		r.of[k] = to
	}
	r.actions[at] = list
	return list
}

// sameChain returns the chain for the same action as another renderer has it.
func (r *renderer) sameChain(k key, to action) entry {
	for _, e := range r.action(k.ip, atOnce, to) {
		if e.Key == k {
			return e
		}
	}
	return entry{}
}

// host renders what does not depend on Services.
func (r *renderer) host() []entry {
	var list []entry
	for _, b := range r.builders {
		list = append(list, entry{Key: key{ip: b.ip, of: tableObject}})
		for _, set := range r.layout.all {
			list = append(list, entry{Key: key{b.ip, setObject, set.Name}})
		}
		if pods := ranges(b.ip, b.host.Detector.PodCIDRs); len(pods) > 0 {
			list = append(list, entry{Key: key{ip: b.ip, of: podRanges}, Value: encode(pods)})
		}
		for _, c := range b.fixed() {
			list = append(list, r.chain(key{b.ip, chainObject, c.Name}, c))
		}
		for _, a := range b.host.NodePorts.Addrs {
			if route.FamilyOf(a) == b.ip {
				list = append(list, entry{Key: key{b.ip, nodeIPElement, string(nft.Key{}.Addr(a))}})
			}
		}
		for _, e := range ranges(b.ip, b.host.ServiceCIDRs) {
			list = append(list, entry{Key: key{b.ip, serviceCIDRElement, e.Key + e.End}})
		}
	}
	return list
}

// ranges renders the prefixes of one family as elements of an interval set.
func ranges(ip route.Family, prefixes []netip.Prefix) []nft.Element {
	var all []nft.Element
	for _, p := range prefixes {
		if route.FamilyOf(p.Addr()) != ip {
			continue
		}
		first, end := nft.Range(p)
		e := nft.Element{Key: string(nft.Key{}.Addr(first))}
		if end.IsValid() {
			e.End = string(nft.Key{}.Addr(end))
		}
		all = append(all, e)
	}
	return all
}

// into adds a step to a transaction.
func (r *renderer) into(tx *nft.Tx, s step) {
	k, table := s.Key, tableFor(s.Key.ip)
	switch {
	case k.of == tableObject:
		if s.Op == ledger.Remove || s.Old == unfit {
			tx.DeleteTable(table)
		}
		if s.Op != ledger.Remove {
			tx.AddTable(table)
		}
	case k.of == setObject && s.Op == ledger.Remove:
		tx.DeleteSet(table, k.name)
	case k.of == setObject:
		i := slices.IndexFunc(r.layout.all, func(set nft.Set) bool { return set.Name == k.name })
		tx.AddSet(table, r.layout.all[i])
	case k.of < firstElement:
		r.chainInto(tx, s)
	case k.of.ranged():
		had, want := decode(s.Old), decode(s.New)
		set := *r.layout.set(k.of)
		for _, e := range without(had, want) {
			tx.Delete(table, set, e)
		}
		for _, e := range without(want, had) {
			tx.Add(table, set, e)
		}
	default:
		set := *r.layout.set(k.of)
		if s.Op != ledger.Add {
			tx.Delete(table, set, r.layout.element(k, s.Old))
		}
		if s.Op != ledger.Remove {
			tx.Add(table, set, r.layout.element(k, s.New))
		}
	}
}

func (r *renderer) chainInto(tx *nft.Tx, s step) {
	table := tableFor(s.Key.ip)
	switch s.Op {
	case ledger.Add, ledger.Change:
		tx.SetChain(table, r.chains[s.Key])
	case ledger.Empty:
		tx.FlushChain(table, s.Key.name)
	case ledger.Remove:
		tx.DeleteChain(table, s.Key.name)
	}
}

// without returns the elements of a list that are not in another.
func without(list, other []nft.Element) []nft.Element {
	if len(list) == 0 || len(other) == 0 {
		return list
	}
	in := make(map[nft.Element]bool, len(other))
	for _, e := range other {
		in[e] = true
	}
	return slices.DeleteFunc(list, func(e nft.Element) bool { return in[e] })
}
