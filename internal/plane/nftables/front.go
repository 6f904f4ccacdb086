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
	singles []single      // elements under the key itself
	allowed []nft.Element // of space.allowed
	inside  pools         // of space.backends, by index
	outside pools         // of space.outsideBackends, by index
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

// pools are backends in their slots: of a port, by pool; of a front, by the pool of
// the port whose slots they are, if the port remembers its clients, else in the first.
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
	if w.Masquerade {
		return s.choose(p, w, kindMasquerade)
	}
	return s.choose(p, w, kindPlain)
}

// offPod returns the way that masquerades everybody but pods.
func (s *space) offPod(p *route.Port, w route.Way) way {
	return s.choose(p, w, kindOffPod)
}

// toOutside returns the way of those who are not on this node.
func (s *space) toOutside(p *route.Port, w route.Way) way {
	return s.choose(p, w, kindOutside)
}

func (s *space) choose(p *route.Port, w route.Way, kind uint16) way {
	n := len(p.Backends(w.Pool))
	switch {
	case w.Verdict == route.Drop:
		return s.way(kindDrop, 0)
	case w.Verdict == route.Reject || n == 0:
		return s.way(kindReject, 0)
	case p.Affinity > 0:
		return s.stickyWay(kind, p.Affinity, w.Pool, n)
	}
	return s.way(kind, min(n, maxBackends))
}

// key returns what a front is found by.
func (l *layout) key(p *route.Port, f *route.Front) frontKey {
	k := nft.Key{}
	if f.Kind != route.NodePort {
		k = make(nft.Key, 0, 24).Addr(f.Addr)
	}
	return frontKey{p.Family, spaceOf(f), string(k.Proto(uint8(p.Protocol)).Port(f.Port))}
}

// render says what the maps hold for a front of a port.
func (l *layout) render(name cluster.Name, p *route.Port, f *route.Front, a arrangement) front {
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
		r.outside = a.balance(p, w.outside, w.outsidePool)
		r.inside = a.balance(p, w.inside, w.insidePool)
	} else {
		r.inside = a.balance(p, w.first, w.insidePool)
	}
	if w.first.sticky() || w.inside.sticky() || w.outside.sticky() {
		r.singles = append(r.singles, single{&s.affinity, nft.Element{Key: k.key, Data: way(a.id).data()}})
	}
	return r
}

// arrangement is what history decides about a port.
type arrangement struct {
	slots pools
	id    uint32 // of a port that remembers its clients
}

// balance returns the slots a way chooses among.
func (a arrangement) balance(p *route.Port, w way, pool route.Pool) pools {
	switch {
	case w.kind() < kindPlain:
		return pools{}
	case w.sticky():
		return a.slots.reachable(pool, p.Backends(pool))
	}
	backends := a.slots[pool]
	return pools{backends[:min(len(backends), maxBackends)]}
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

// row renders a backend with its number.
func row(key string, number uint32, backend netip.AddrPort) nft.Element {
	k := append(make(nft.Key, 0, len(key)+4), key...)
	return nft.Element{
		Key:  string(k.Index(number)),
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
