package layer2

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// content is the content of the sets and maps of a generation.
type content struct {
	layout

	small map[setKey]map[string]nft.Element // elements of all sets except the maps of slots, by key
	ports map[route.PortID]*rendered
	addrs map[netip.Addr]*rendered // for packets without a port
}

// setKey identifies a set of a side.
type setKey struct {
	side
	set string
}

// rendered are the elements of a port in the maps of slots.
type rendered struct {
	kind   keyKind
	family nft.Family
	keys   []string    // of its frontends
	nodes  [3][]uint16 // the number of the node by stage and slot; 0: none
}

// port is a port that is served directly.
type port struct {
	*route.Port
	owners []route.Owner // from which slots were computed
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

// render returns the elements of a port. number returns the number of a node at its link.
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

// addAddrs adds the slots of the addresses of a port. If ports of an address have different nodes in a slot, the slot
// is empty.
func (c *content) addAddrs(p *port, r *rendered) {
	for _, f := range p.external() {
		all := c.addrs[f.Addr]
		if all == nil {
			c.addrs[f.Addr] = &rendered{portless, r.family, []string{string(nft.Key{}.Addr(f.Addr))}, r.nodes}
			continue
		}
		for stage := range all.nodes {
			all.nodes[stage] = common(all.nodes[stage], r.nodes[stage])
		}
	}
}

// common returns the elements that are the same in both lists, and zero elsewhere.
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

// addSmall adds the elements of a port to the small sets.
func (c *content) addSmall(p *port) {
	for _, s := range sides() {
		if familyOf(p.Family) != s.ip {
			continue
		}
		for _, f := range p.external() {
			c.put(s, s.vips(), nft.Element{Key: string(nft.Key{}.Addr(f.Addr))})
			if p.Affinity > 0 {
				c.byClient = true
				c.put(s, s.byClient(withPort), nft.Element{Key: keyOf(f, p.Protocol)})
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
	for key, p := range r.probes {
		s := side{familyOf(key.family), true}
		c.put(s, s.neighbours(nft.Device(p.Device)), nft.Element{
			Key: string(nft.Key{}.Ether(p.MAC)), Data: string(nft.Key{}.Addr(p.Addr)),
		})
	}
	for mac := range r.macs {
		c.put(sides()[0], peers(), nft.Element{Key: string(nft.Key{}.Ether(mac))})
	}
	for a := range r.outer {
		s := side{ip: familyOf(route.FamilyOf(a))}
		c.put(s, s.outer(), nft.Element{Key: string(nft.Key{}.Addr(a))})
	}
}

// value returns the number of a node as the priority of a packet. It is greater than all slots, and its lowest bits are
// zero, because devices choose the queue by them.
func value(node uint16) uint32 { return uint32(node) << 16 }

func (c *content) put(s side, set nft.Set, e nft.Element) {
	at := setKey{s, set.Name}
	if c.small[at] == nil {
		c.small[at] = map[string]nft.Element{}
	}
	c.small[at][e.Key] = e
}

// writer writes transactions of bounded size.
type writer struct {
	g      generation
	links  []link // by number - 1
	room   int    // bytes of a transaction
	commit func(*nft.Tx) error
	tx     nft.Tx
	err    error
}

// flush commits the pending transaction. After an error it only discards it.
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

// update writes the difference of two contents with the same devices. It adds the small sets before the maps of slots,
// which refer to them, and deletes them after.
func (w *writer) update(before, after *content) {
	w.small(before, after, func(at setKey, set nft.Set, old, now *nft.Element) {
		if old != nil && now != nil && *old != *now {
			w.tx.Delete(at.table(w.g), set, *old)
		}
		if now != nil && (old == nil || *old != *now) {
			w.tx.Add(at.table(w.g), set, *now)
		}
	})
	each(before.ports, after.ports, w.port)
	each(before.addrs, after.addrs, w.port)
	w.small(before, after, func(at setKey, set nft.Set, old, now *nft.Element) {
		if old != nil && now == nil {
			w.tx.Delete(at.table(w.g), set, *old)
		}
	})
	w.flush()
}

// small calls do for each element of a small set in either content. old or now is nil if only the other has it.
func (w *writer) small(before, after *content, do func(at setKey, set nft.Set, old, now *nft.Element)) {
	for _, s := range sides() {
		for _, set := range s.sets(after.devices) {
			at := setKey{s, set.Name}
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

// each calls do for each key whose value has changed. A missing value is nil.
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

// port writes the difference of a port in the maps of slots. old or now may be nil. The map that packets need first is
// written last: with a new map of owners and an old map of former owners, two nodes would pass a packet to each other.
func (w *writer) port(old, now *rendered) {
	if old == nil {
		old = &rendered{kind: now.kind, family: now.family}
	}
	if now == nil {
		now = &rendered{kind: old.kind, family: old.family}
	}
	for _, s := range slices.Backward(sides()) {
		if s.ip != now.family {
			continue
		}
		for _, at := range slices.Backward(s.stages()) {
			for _, key := range old.keys {
				if !slices.Contains(now.keys, key) {
					w.slots(slotsAt{s, old.kind, at}, key, [2][]uint16{old.nodes[at], nil})
				}
			}
			for _, key := range now.keys {
				was := old.nodes[at]
				if !slices.Contains(old.keys, key) {
					was = nil
				}
				w.slots(slotsAt{s, now.kind, at}, key, [2][]uint16{was, now.nodes[at]})
			}
		}
	}
}

// slotsAt identifies a map of slots, or one for each device.
type slotsAt struct {
	side
	kind keyKind
	at   stage
}

// element returns the map that has slots of a node, and the data of its elements.
func (w *writer) element(s slotsAt, node uint16) (set nft.Set, data string) {
	if !s.entering {
		return s.slots(s.kind, s.at), string(nft.Key{}.Index(value(node)))
	}
	l := w.links[node-1]
	return s.owners(s.kind, l.device), string(nft.Key{}.Addr(l.addr))
}

// slots writes the difference between two lists of the nodes of a frontend, old and new. A nil list has no nodes.
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

// build writes a generation, which must not exist yet. It writes the rules last.
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
