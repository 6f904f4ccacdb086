package nftables

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// renderer renders arranged Services, and a host, into entries. It remembers the chains it made: many
// frontends lead to few of them. A part of a first load is rendered while the one before it is written.
type renderer struct {
	layout   *layout
	builders map[route.Family]*builder // of the families that the plane serves

	mu      sync.Mutex
	chains  map[key]nft.Chain
	actions map[key][]entry // by the element of an action in the map in which it is looked up
}

func newRenderer(l *layout, host route.Host, opt Options) *renderer {
	r := &renderer{
		layout: l, builders: map[route.Family]*builder{}, chains: map[key]nft.Chain{}, actions: map[key][]entry{},
	}
	for _, ip := range opt.Families {
		r.builders[ip] = &builder{layout: l, ip: ip, f: tableFor(ip).Family, host: &host, mark: opt.Mark}
	}
	return r
}

func (r *renderer) chain(k key, c nft.Chain) entry {
	r.chains[k] = c
	return entry{Key: k, Value: rulesOf(c)}
}

func rulesOf(c nft.Chain) value {
	var b strings.Builder
	for _, rule := range c.Rules {
		b.WriteString(rule.String())
		b.WriteByte('\n')
	}
	return value{data: b.String()}
}

// action renders the element that leads from an action to its chain, and the chain with those it needs.
func (r *renderer) action(ip route.Family, way object, to action) []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := key{ip, way, to.data()}
	if list, known := r.actions[at]; known {
		return list
	}
	list := []entry{{Key: at, Value: value{data: to.chain()}}}
	for _, c := range r.builders[ip].chainsFor(to) {
		list = append(list, r.chain(key{ip, actionChain, c.Name}, c))
	}
	r.actions[at] = list
	return list
}

func (r *renderer) rendered(k key) nft.Chain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chains[k]
}

// service renders the frontends of a Service. It leaves out rows that the same frontend has in
// another state, and that need not be compared.
func (r *renderer) service(list []entry, name cluster.Name, fronts []front, other map[key]*front) []entry {
	list = slices.Grow(list, 8*len(fronts))
	for i := range fronts {
		f := &fronts[i]
		list = r.front(list, name, f)
		if i+1 == len(fronts) || fronts[i+1].port != f.port {
			for _, a := range f.port.Here {
				list = append(list, entry{Key: key{f.key.ip, hairpinElement, string(nft.Key{}.Addr(a).Addr(a))}})
			}
		}
		list = f.differingRows(list, other[f.key])
	}
	return list
}

// front renders a frontend without its rows.
func (r *renderer) front(list []entry, service cluster.Name, f *front) []entry {
	k := f.key
	put := func(of object, v value) { list = append(list, entry{Key: key{k.ip, of, k.name}, Value: v}) }
	lead := func(of object, to action, comment string) {
		put(of, value{to.data(), comment})
		list = append(list, r.action(k.ip, wayOf(of), to)...)
	}
	if f.Kind == route.ClusterIP {
		list = append(list, entry{Key: key{k.ip, clusterIPElement, string(nft.Key{}.Addr(f.Addr))}})
	}
	if f.split() {
		lead(insideElement.in(f.space), f.legs[0].action, "")
		lead(outsideElement.in(f.space), f.legs[1].action, "")
	}
	if f.Restricted && len(f.Allow) > 0 {
		put(allowedRanges, encode(ranges(k.ip, k.name, f.Allow)))
	}
	lead(k.of, f.first(), comment(service, f.port.Name))
	if f.id != 0 {
		put(affinityElement.in(f.space), value{data: action(f.id).data()})
	}
	return list
}

// differingRows appends the rows that the same frontend does not have in another state.
func (f *front) differingRows(list []entry, other *front) []entry {
	for k, backend := range f.differing(other) {
		list = append(list, entry{Key: k, Value: value{data: rowData(backend)}})
	}
	return list
}

// differing returns the rows that the same frontend does not have in another state; nil: it has none.
func (f *front) differing(other *front) iter.Seq2[key, netip.AddrPort] {
	if other == nil {
		other = &front{}
	}
	return func(yield func(key, netip.AddrPort) bool) {
		for leg := range f.rows {
			for pool, slots := range f.rows[leg] {
				same := other.rows[leg][pool]
				for at, backend := range slots {
					if !backend.IsValid() || at < len(same) && backend == same[at] {
						continue
					}
					if !yield(key{f.key.ip, f.rowsOf(leg), rowKey(f.key.name, number(pool, at))}, backend) {
						return
					}
				}
			}
		}
	}
}

func rowData(backend netip.AddrPort) string {
	return string(make(nft.Key, 0, 20).Addr(backend.Addr()).Port(backend.Port()))
}

// rowKey returns the key of the row of a frontend with a number.
func rowKey(frontend string, number uint32) string {
	return string(append(make(nft.Key, 0, len(frontend)+4), frontend...).Index(number))
}

// comment names the Service port of an element, for people.
func comment(service cluster.Name, port string) string {
	s := service.String()
	if port != "" {
		s += ":" + port
	}
	return s[:min(len(s), nft.MaxComment-1)]
}

// replaces returns the chains of actions as another renderer has rendered them, and as this one does.
func (r *renderer) replaces(other *renderer) func(key) (old, now value, is bool) {
	for at := range other.actions {
		r.action(at.ip, at.of, actionIn(at.name))
	}
	return func(k key) (old, now value, is bool) {
		if k.of != actionChain {
			return value{}, value{}, false
		}
		return rulesOf(other.chains[k]), rulesOf(r.chains[k]), true
	}
}

// host renders what does not depend on Services.
func (r *renderer) host() []entry {
	var list []entry
	for _, ip := range route.Families() {
		b := r.builders[ip]
		if b == nil {
			continue
		}
		list = append(list, entry{Key: key{ip: b.ip, of: tableObject}})
		for _, set := range r.layout.sets() {
			list = append(list, entry{Key: key{b.ip, setObject, set.Name}})
		}
		if pods := ranges(b.ip, "", b.host.Detector.PodCIDRs); len(pods) > 0 {
			list = append(list, entry{Key: key{ip: b.ip, of: podRanges}, Value: encode(pods)})
		}
		for _, c := range b.fixed() {
			list = append(list, r.chain(key{b.ip, chainObject, c.Name}, c))
		}
		for _, a := range b.host.NodePorts.Of(b.ip) {
			list = append(list, entry{Key: key{b.ip, nodeIPElement, string(nft.Key{}.Addr(a))}})
		}
		for _, e := range ranges(b.ip, "", b.host.ServiceCIDRs) {
			list = append(list, entry{Key: key{b.ip, serviceCIDRElement, e.Key + e.End}})
		}
	}
	return list
}

// ranges renders the prefixes of one family as elements of an interval set, behind the fields of a key.
func ranges(ip route.Family, key string, prefixes []netip.Prefix) []nft.Element {
	var all []nft.Element
	for _, p := range prefixes {
		if route.FamilyOf(p.Addr()) == ip {
			all = append(all, nft.Range(key, p))
		}
	}
	return all
}
