package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// frontendKey identifies a frontend: no two frontends of a table share one.
type frontendKey struct {
	ip    route.Family
	space int
	key   string // as in the maps
}

// frontend is all that the tables hold for one frontend.
type frontend struct {
	key     frontendKey
	entries []entry  // without rows
	rows    [2]pools // of space.backends and of space.outsideBackends
	id      uint32   // of the port, if it remembers its clients
}

// pools are backends in their slots: of a port, by pool; of a frontend, by the pool of
// the port whose slots they are, if the port remembers its clients, else in the first.
// An invalid backend is a hole.
type pools [2][]netip.AddrPort

// actions are what a frontend does with connections of each client.
type actions struct {
	first           action // in frontends, or behind the guard
	inside, outside action // if first is a split
	insidePool      route.Pool
	outsidePool     route.Pool
}

// shape finds the actions of a frontend.
func (l *layout) shape(p *route.Port, f *route.Frontend) actions {
	s := &l.spaces[spaceOf(f)]
	same := f.Node
	same.Masquerade = f.Pods.Masquerade
	switch {
	case f.Pods == f.Node && f.Node == f.Others:
		return actions{first: s.balance(p, f.Pods), insidePool: f.Pods.Pool}
	case f.Node == f.Others && f.Pods == same:
		return actions{first: s.choose(p, f.Node, kindOffPod), insidePool: f.Pods.Pool}
	}
	inside := f.Node // the split marks connections of this node itself
	inside.Masquerade = false
	return actions{
		first:      s.action(kindSplit, 0),
		inside:     s.balance(p, inside),
		outside:    s.choose(p, f.Others, kindOutside),
		insidePool: inside.Pool, outsidePool: f.Others.Pool,
	}
}

func spaceOf(f *route.Frontend) int {
	if f.Kind == route.NodePort {
		return byNodePort
	}
	return byAddress
}

// balance returns the action for one and the same treatment of all clients.
func (s *space) balance(p *route.Port, w route.Way) action {
	if w.Masquerade {
		return s.choose(p, w, kindMasquerade)
	}
	return s.choose(p, w, kindPlain)
}

func (s *space) choose(p *route.Port, w route.Way, kind uint16) action {
	n := len(p.Backends(w.Pool))
	switch {
	case w.Verdict == route.Drop:
		return s.action(kindDrop, 0)
	case w.Verdict == route.Reject || n == 0:
		return s.action(kindReject, 0)
	case p.Affinity > 0:
		return s.stickyAction(kind, p.Affinity, w.Pool, n)
	}
	return s.action(kind, min(n, maxBackends))
}

// key returns the key of a frontend in the maps.
func (l *layout) key(p *route.Port, f *route.Frontend) frontendKey {
	k := nft.Key{}
	if f.Kind != route.NodePort {
		k = make(nft.Key, 0, 24).Addr(f.Addr)
	}
	return frontendKey{p.Family, spaceOf(f), string(k.Proto(uint8(p.Protocol)).Port(f.Port))}
}

// service renders the frontends of a Service, in the families that are enabled, with
// the slots and ids that a function returns. The list takes over the memory of another.
func (r *renderer) service(memory []frontend, svc *route.Service, history func(*route.Port) record) []frontend {
	list := memory[:0]
	if svc == nil {
		return list
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !r.enabled(p.Family) {
			continue
		}
		h := history(p).complete(p)
		for j := range p.Frontends {
			list = slices.Grow(list, 1)[:len(list)+1]
			f := &list[len(list)-1]
			*f = frontend{entries: f.entries[:0]}
			r.frontend(f, portOf{p, svc.Name, h}, &p.Frontends[j])
		}
		if len(p.Frontends) > 0 {
			last := &list[len(list)-1]
			for _, a := range p.Here {
				last.entries = append(last.entries, entry{Key: key{p.Family, hairpinElement, string(nft.Key{}.Addr(a).Addr(a))}})
			}
		}
	}
	return list
}

// portOf is a port of a Service, with what the tables hold of it beyond its route.
type portOf struct {
	*route.Port
	service cluster.Name
	record  record
}

// frontend renders a frontend of a port.
func (r *renderer) frontend(out *frontend, p portOf, f *route.Frontend) {
	k := r.layout.key(p.Port, f)
	a := r.layout.shape(p.Port, f)
	out.key, out.entries = k, slices.Grow(out.entries, 8)
	put := func(of object, v string) {
		out.entries = append(out.entries, entry{Key: key{k.ip, of.in(k.space), k.key}, Value: v})
	}
	lead := func(of object, level int, to action, comment string) {
		put(of, value(nft.Element{Data: to.data(), Comment: comment}))
		out.entries = append(out.entries, r.action(k.ip, level, to)...)
	}
	if f.Kind == route.ClusterIP {
		out.entries = append(out.entries, entry{Key: key{k.ip, clusterIPElement, string(nft.Key{}.Addr(f.Addr))}})
	}
	first, level, note := frontendElement, atOnce, comment(p.service, p.Name)
	if f.Restricted {
		lead(first, level, r.layout.spaces[k.space].action(kindGuard, 0), note)
		if len(f.Allow) > 0 {
			put(allowedRanges, encode(allowed(k.key, f.Allow)))
		}
		first, level, note = guardedElement, afterGuard, ""
	}
	lead(first, level, a.first, note)
	if a.first.kind() == kindSplit {
		lead(insideElement, afterSplit, a.inside, "")
		lead(outsideElement, afterSplit, a.outside, "")
		out.rows = [2]pools{p.record.balance(p.Port, a.inside, a.insidePool), p.record.balance(p.Port, a.outside, a.outsidePool)}
	} else {
		out.rows[0] = p.record.balance(p.Port, a.first, a.insidePool)
	}
	if a.first.sticky() || a.inside.sticky() || a.outside.sticky() {
		out.id = p.record.id
		put(affinityElement, action(p.record.id).data())
	}
}

func (a action) data() string { return string(nft.Key{}.ClassID(uint32(a))) }

// entries appends the entries of frontends to a list. It leaves out rows that the same
// frontend has in another state, and that need not be compared.
func entries(list []entry, frontends []frontend, other map[frontendKey]*frontend) []entry {
	for i := range frontends {
		f := &frontends[i]
		same := other[f.key]
		if same == nil {
			same = &frontend{}
		}
		list = append(list, f.entries...)
		for outside := range f.rows {
			for pool, slots := range f.rows[outside] {
				for at, backend := range slots {
					if backend.IsValid() && backend != slot(same.rows[outside][pool], at) {
						list = append(list, f.row(outside, number(pool, at), backend))
					}
				}
			}
		}
	}
	return list
}

func slot(slots []netip.AddrPort, i int) netip.AddrPort {
	if i < len(slots) {
		return slots[i]
	}
	return netip.AddrPort{}
}

// row renders a backend with its number.
func (f *frontend) row(outside int, number uint32, backend netip.AddrPort) entry {
	e := row(f.key.key, number, backend)
	return entry{Key: key{f.key.ip, (backendElement + object(outside)).in(f.key.space), e.Key}, Value: e.Data}
}

func row(key string, number uint32, backend netip.AddrPort) nft.Element {
	return nft.Element{
		Key:  rowKey(key, number),
		Data: string(make(nft.Key, 0, 20).Addr(backend.Addr()).Port(backend.Port())),
	}
}

// rowKey returns the key of the row of a frontend with a number.
func rowKey(frontend string, number uint32) string {
	return string(append(make(nft.Key, 0, len(frontend)+4), frontend...).Index(number))
}

// allowed renders allowed clients, as ranges of addresses.
func allowed(key string, prefixes []netip.Prefix) []nft.Element {
	var all []nft.Element
	for _, p := range prefixes {
		all = append(all, nft.Element{
			Key: string(nft.Key(key).Addr(p.Addr())),
			End: string(nft.Key(key).Addr(nft.Last(p))),
		})
	}
	return all
}

// comment names the Service port of an element, for people.
func comment(name cluster.Name, port string) string {
	var b strings.Builder
	b.Grow(len(name.Namespace) + len(name.Name) + len(port) + 2)
	b.WriteString(name.Namespace)
	b.WriteByte('/')
	b.WriteString(name.Name)
	if port != "" {
		b.WriteByte(':')
		b.WriteString(port)
	}
	s := b.String()
	return s[:min(len(s), nft.MaxComment-1)]
}
