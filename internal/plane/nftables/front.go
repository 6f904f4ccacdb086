package nftables

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// frontKey tells fronts apart: no two fronts of a table share one.
type frontKey struct {
	ip    route.Family
	space int
	key   string // as in the maps
}

func (k frontKey) compare(l frontKey) int {
	return cmp.Or(cmp.Compare(k.ip, l.ip), cmp.Compare(k.space, l.space), cmp.Compare(k.key, l.key))
}

// front is all that the maps hold for one front.
type front struct {
	singles []single         // elements under the key itself
	allowed []nft.Element    // of space.allowed
	inside  []netip.AddrPort // of space.backends, by index
	outside []netip.AddrPort // of space.outsideBackends, by index
}

// single is an element that a front has at most one of in a set.
type single struct {
	set     *nft.Set
	element nft.Element
}

// portKey tells the pools of backends apart.
type portKey struct {
	service  cluster.Name
	port     string
	protocol cluster.Protocol
	ip       route.Family
	pool     route.Pool
}

// pools are the backends of a port in their slots.
type pools [2][]netip.AddrPort

// ways are what a front does, found out from what it does to each client.
type ways struct {
	first           way // in fronts, or behind the guard
	inside, outside way // if first is a split
	insidePool      route.Pool
	outsidePool     route.Pool
}

// shape finds the ways of a front. The index is that of the front's space.
func (l *layout) shape(p *route.Port, f *route.Front) ways {
	s := &l.spaces[spaceOf(f)]
	same := f.Node
	same.Masquerade = f.Pods.Masquerade
	switch {
	case f.Pods == f.Node && f.Node == f.Others:
		return ways{first: s.balance(p, f.Pods), insidePool: f.Pods.Pool}
	case f.Node == f.Others && f.Pods == same:
		return ways{first: s.offPod(p, f.Node), insidePool: f.Pods.Pool}
	}
	inside := f.Node // the split marks what this node sends itself
	inside.Masquerade = false
	return ways{
		first:      s.way(kindSplit, 0),
		inside:     s.balance(p, inside),
		outside:    s.toOutside(p, f.Others),
		insidePool: inside.Pool, outsidePool: f.Others.Pool,
	}
}

func spaceOf(f *route.Front) int {
	if f.Kind == route.NodePort {
		return byNodePort
	}
	return byAddress
}

// balance returns the way for one and the same treatment of all clients.
func (s *space) balance(p *route.Port, w route.Way) way {
	plain, sticky := uint16(kindPlain), uint16(kindSticky)
	if w.Masquerade {
		plain, sticky = kindMasquerade, kindStickyMasq
	}
	return s.choose(p, w, plain, sticky)
}

// offPod returns the way that masquerades everybody but pods.
func (s *space) offPod(p *route.Port, w route.Way) way {
	return s.choose(p, w, kindOffPod, kindStickyOffPod)
}

// toOutside returns the way of those who are not on this node.
func (s *space) toOutside(p *route.Port, w route.Way) way {
	return s.choose(p, w, kindOutside, kindStickyOutside)
}

func (s *space) choose(p *route.Port, w route.Way, plain, sticky uint16) way {
	n := len(p.Backends(w.Pool))
	switch {
	case w.Verdict == route.Drop:
		return s.way(kindDrop, 0)
	case w.Verdict == route.Reject || n == 0:
		return s.way(kindReject, 0)
	case p.Affinity > 0:
		return s.way(sticky, 0)
	}
	return s.way(plain, min(n, maxBackends))
}

// key returns what a front is found by.
func (l *layout) key(p *route.Port, f *route.Front) frontKey {
	k := nft.Key{}
	if f.Kind != route.NodePort {
		k = make(nft.Key, 0, 24).Addr(f.Addr)
	}
	return frontKey{p.Family, spaceOf(f), string(k.Proto(uint8(p.Protocol)).Port(f.Port))}
}

// render says what the maps hold for a front whose backends are in these slots.
func (l *layout) render(name cluster.Name, p *route.Port, f *route.Front, slots pools) front {
	k := l.key(p, f)
	s := &l.spaces[k.space]
	w := l.shape(p, f)
	var r front
	put := func(set *nft.Set, value way) {
		e := nft.Element{Key: k.key, Data: value.data()}
		if set == &s.fronts {
			e.Comment = comment(name, p.Name)
		}
		r.singles = append(r.singles, single{set, e})
	}
	first := &s.fronts
	if f.Restricted {
		put(first, s.way(kindGuard, 0))
		first = &s.guarded
		r.allowed = allowed(k.key, f.Allow)
	}
	put(first, w.first)
	if w.first.kind() == kindSplit {
		put(&s.inside, w.inside)
		put(&s.outside, w.outside)
		r.outside = r.balance(name, p, target{w.outside, w.outsidePool, &s.outsideSticky, k.key}, slots)
		r.inside = r.balance(name, p, target{w.inside, w.insidePool, &s.sticky, k.key}, slots)
		return r
	}
	r.inside = r.balance(name, p, target{w.first, w.insidePool, &s.sticky, k.key}, slots)
	return r
}

// target is where a way of a front leads.
type target struct {
	way    way
	pool   route.Pool
	sticky *nft.Set
	key    string
}

// balance returns the slots a way chooses among, or, if it remembers clients,
// adds the element that leads to the chain that does.
func (r *front) balance(name cluster.Name, p *route.Port, t target, slots pools) []netip.AddrPort {
	if t.way.kind() < kindPlain {
		return nil
	}
	if p.Affinity > 0 {
		r.singles = append(r.singles, single{t.sticky, nft.Element{Key: t.key, Goto: stickyChain(name, p, t.pool)}})
		return nil
	}
	backends := slots[t.pool]
	return backends[:min(len(backends), maxBackends)]
}

func (w way) data() string { return string(nft.Key{}.ClassID(uint32(w))) }

// allowed renders the clients that are let in, as ranges of addresses.
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

// row renders one slot. In the kernel they count from 1.
func row(key string, slot int, backend netip.AddrPort) nft.Element {
	k := append(make(nft.Key, 0, len(key)+4), key...)
	return nft.Element{
		Key:  string(k.Index(uint32(slot + 1))),
		Data: string(make(nft.Key, 0, 20).Addr(backend.Addr()).Port(backend.Port())),
	}
}

// comment leads a person from an element to its Service.
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
