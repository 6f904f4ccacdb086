package layer2

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// content is what the tables hold besides the rules.
type content struct {
	layout

	small map[place]map[string]nft.Element // all sets but those of slots, by key
	ports map[route.PortID]*rendered
	addrs map[netip.Addr]*rendered // for what has no port
}

// place is a set of a side.
type place struct {
	side
	set string
}

// rendered is a port in the maps of slots.
type rendered struct {
	of     subject
	family nft.Family
	keys   []string    // of its frontends
	nodes  [3][]uint16 // by stage and slot: the number of the node; 0: none
}

// port is a port that is served directly.
type port struct {
	*route.Port
	owners []route.Owner // to which slots belong
	slots  direct.Port
}

func (p *port) external() (all []*route.Frontend) {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.External() {
			all = append(all, f)
		}
	}
	return all
}

// render returns the slots of a port. Only nodes that can be reached have a number.
func (p *port) render(self string, r *reach, number func(link) uint16) *rendered {
	c := p.slots.Choose(p.owners, direct.View{Self: self, Reachable: func(node string) bool {
		_, can := r.links[linkKey{node, p.Family}]
		return can
	}})
	out := &rendered{family: familyOf(p.Family)}
	for _, f := range p.external() {
		out.keys = append(out.keys, keyOf(f, p.Protocol))
	}
	for i, names := range [][]string{entering: c.Entering, unknown: c.Unknown, lost: c.Lost} {
		out.nodes[i] = make([]uint16, direct.Slots)
		for slot, name := range names {
			if name != "" {
				out.nodes[i][slot] = number(r.links[linkKey{name, p.Family}])
			}
		}
	}
	return out
}

// addAddrs adds the slots of addresses. Ports of one address with other owners leave the slot empty.
func (c *content) addAddrs(p *port, r *rendered) {
	for _, f := range p.external() {
		all := c.addrs[f.Addr]
		if all == nil {
			c.addrs[f.Addr] = &rendered{portless, r.family, []string{string(nft.Key{}.Addr(f.Addr))}, r.nodes}
			continue
		}
		for at := range all.nodes {
			all.nodes[at] = common(all.nodes[at], r.nodes[at])
		}
	}
}

// common returns what two lists have in common, and zero elsewhere.
func common(a, b []uint16) []uint16 {
	if slices.Equal(a, b) {
		return a
	}
	both := make([]uint16, len(a))
	for i := range a {
		if a[i] == b[i] {
			both[i] = a[i]
		}
	}
	return both
}

// addSmall adds a port to the small sets.
func (c *content) addSmall(p *port) {
	for _, s := range sides() {
		if familyOf(p.Family) != s.ip {
			continue
		}
		for _, f := range p.external() {
			c.put(s, s.vips(), nft.Element{Key: string(nft.Key{}.Addr(f.Addr))})
			if p.Affinity > 0 {
				c.byClient = true
				c.put(s, s.byClient(packets), nft.Element{Key: keyOf(f, p.Protocol)})
				c.put(s, s.byClient(portless), nft.Element{Key: string(nft.Key{}.Addr(f.Addr))})
			}
		}
	}
}

// addNodes adds the reachable nodes to the small sets.
func (c *content) addNodes(r *reach, number func(link) uint16) {
	for key, l := range r.links {
		for _, s := range sides() {
			if familyOf(key.family) == s.ip && !s.entering {
				c.put(s, s.nodes(l.device), nft.Element{
					Key: string(nft.Key{}.Index(value(number(l)))), Data: string(nft.Key{}.Addr(l.addr)),
				})
			}
		}
	}
	for mac := range r.macs {
		c.put(sides()[0], peers(), nft.Element{Key: string(nft.Key{}.Ether(mac))})
	}
	for a := range r.outer {
		s := side{ip: familyOf(route.FamilyOf(a))}
		c.put(s, s.outer(), nft.Element{Key: string(nft.Key{}.Addr(a))})
	}
}

// value is a node in the priority of a packet: greater than all slots, and with the lowest bits zero, by which queues
// of devices choose.
func value(node uint16) uint32 { return uint32(node) << 16 }

func (c *content) put(s side, set nft.Set, e nft.Element) {
	at := place{s, set.Name}
	if c.small[at] == nil {
		c.small[at] = map[string]nft.Element{}
	}
	c.small[at][e.Key] = e
}

// writer writes transactions of bounded size.
type writer struct {
	g      generation
	links  []link // by number, from 1 on
	room   int
	commit func(*nft.Tx) error
	tx     nft.Tx
	err    error
}

// flush commits what is to be written.
func (w *writer) flush() {
	if w.err == nil && w.tx.Size() > 0 {
		w.err = w.commit(&w.tx)
	}
	w.tx = nft.Tx{}
}

func (w *writer) flushIfFull() {
	if w.tx.Bytes() > w.room*9/10 {
		w.flush()
	}
}

// update writes the difference of two contents with the same devices: what is referred to comes first, and goes last.
func (w *writer) update(before, after *content) {
	w.small(before, after, func(at place, set nft.Set, old, now *nft.Element) {
		if old != nil && now != nil && *old != *now {
			w.tx.Delete(at.table(w.g), set, *old)
		}
		if now != nil && (old == nil || *old != *now) {
			w.tx.Add(at.table(w.g), set, *now)
		}
	})
	each(before.ports, after.ports, w.port)
	each(before.addrs, after.addrs, w.port)
	w.small(before, after, func(at place, set nft.Set, old, now *nft.Element) {
		if old != nil && now == nil {
			w.tx.Delete(at.table(w.g), set, *old)
		}
	})
	w.flush()
}

// small calls do for each element of small sets that either content has.
func (w *writer) small(before, after *content, do func(at place, set nft.Set, old, now *nft.Element)) {
	for _, s := range sides() {
		for _, set := range s.sets(after.devices) {
			at := place{s, set.Name}
			for key, now := range after.small[at] {
				var was *nft.Element
				if old, has := before.small[at][key]; has {
					was = &old
				}
				do(at, set, was, &now)
				w.flushIfFull()
			}
			for key, old := range before.small[at] {
				if _, stays := after.small[at][key]; !stays {
					do(at, set, &old, nil)
					w.flushIfFull()
				}
			}
		}
	}
}

// each calls do for each key with another value; nil: there is none.
func each[K comparable](before, after map[K]*rendered, do func(old, now *rendered)) {
	for key, now := range after {
		if old := before[key]; old != now {
			do(old, now)
		}
	}
	for key, old := range before {
		if after[key] == nil {
			do(old, nil)
		}
	}
}

// port writes the difference of a port in the maps of slots; nil: it is not there.
func (w *writer) port(old, now *rendered) {
	if old == nil {
		old = &rendered{of: now.of, family: now.family}
	}
	if now == nil {
		now = &rendered{of: old.of, family: old.family}
	}
	for _, s := range sides() {
		if s.ip != now.family {
			continue
		}
		for _, at := range s.stages() {
			for _, key := range old.keys {
				if !slices.Contains(now.keys, key) {
					w.slots(slotsAt{s, old.of, at}, key, [2][]uint16{old.nodes[at], nil})
				}
			}
			for _, key := range now.keys {
				was := old.nodes[at]
				if !slices.Contains(old.keys, key) {
					was = nil
				}
				w.slots(slotsAt{s, now.of, at}, key, [2][]uint16{was, now.nodes[at]})
			}
		}
	}
}

// slotsAt is one or more maps of slots.
type slotsAt struct {
	side
	of subject
	at stage
}

// element returns the map for a node, and what it has for it.
func (w *writer) element(s slotsAt, node uint16) (set nft.Set, data string) {
	if !s.entering {
		return s.slots(s.of, s.at), string(nft.Key{}.Index(value(node)))
	}
	l := w.links[node-1]
	return s.owners(s.of, l.device), string(nft.Key{}.Addr(l.addr))
}

// slots writes the difference of the slots of a frontend, before and after; nil: all are empty.
func (w *writer) slots(s slotsAt, key string, nodes [2][]uint16) {
	at := func(list []uint16, slot int) uint16 {
		if list == nil {
			return 0
		}
		return list[slot]
	}
	for slot := range direct.Slots {
		was, is := at(nodes[0], slot), at(nodes[1], slot)
		if was == is {
			continue
		}
		if was != 0 {
			set, data := w.element(s, was)
			w.tx.Delete(s.table(w.g), set, nft.Element{Key: slotKey(key, slot), Data: data})
		}
		if is != 0 {
			set, data := w.element(s, is)
			w.tx.Add(s.table(w.g), set, nft.Element{Key: slotKey(key, slot), Data: data})
		}
		w.flushIfFull()
	}
}

// slotKey returns the key of a slot of a frontend.
func slotKey(frontend string, slot int) string {
	return string(append(make(nft.Key, 0, len(frontend)+4), frontend...).Index(uint32(slot + 1)))
}

// build writes a generation, which must not exist. Its rules come last.
func (w *writer) build(c *content) {
	for _, t := range w.g.tables() {
		w.tx.AddTable(t)
	}
	for _, s := range sides() {
		for _, set := range s.sets(c.devices) {
			w.tx.AddSet(s.table(w.g), set)
		}
	}
	w.flush()
	w.update(&content{}, c)
	for t, chains := range w.g.chains(c.layout) {
		for _, chain := range chains {
			w.tx.SetChain(t, chain)
		}
	}
	w.flush()
}
