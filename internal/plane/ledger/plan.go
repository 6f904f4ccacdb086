package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan collects differences, and writes them. Host and Service are called first, then End, then the methods of
// plane.Plan. The ledger learns from a plan when Apply succeeds, and not before.
type Plan[K, V comparable] struct {
	ledger   *Ledger[K, V]
	writer   Writer[K, V]
	found    Listing[K, V] // nil: this plan compares nothing
	first    group[K, V]   // what Services need
	services []group[K, V]
	expected int // how many services there may be
	late     *Rewrite[K, V]
	last     group[K, V]  // what no Service needs
	uses     map[K]use[V] // of a plan of changes
	counts   map[K]int32  // of a comparison: how many Services need each shared entry
	hosts    int          // steps of the host in first
	kept     int
	learn    []func()
	users    func(K) []cluster.Name
	lacking  map[K]bool    // of a comparison: shared entries that the kernel refuses
	refused  plane.Refused // by Apply; not nil in a comparison
}

// Rewrite replaces removals of entries by steps that cost less. They are written
// after all Services and before everything that a Service leaves behind.
type Rewrite[K, V comparable] struct {
	// Replaces reports whether the removal of an entry is left out.
	Replaces func(K) bool
	// Steps returns the steps in their place, while some Services are refused.
	Steps func(refused plane.Refused) []Step[K, V]
}

// Host adds the difference between two states of what belongs to no Service. A comparison ignores old. What is added
// comes before all Services, what is removed after them.
func (p *Plan[K, V]) Host(old, now []Entry[K, V]) {
	p.difference(old, now, &p.first, &p.last)
	p.hosts = len(p.first.steps)
}

// Expect announces how many Services there are, so that memory is allocated once.
func (p *Plan[K, V]) Expect(services int) { p.expected = services }

// Service adds the difference between two states of a Service. A comparison ignores old.
func (p *Plan[K, V]) Service(name cluster.Name, old, now []Entry[K, V]) {
	g := group[K, V]{service: name}
	p.difference(old, now, &g, &g)
	if len(g.steps) == 0 {
		return
	}
	if p.services == nil {
		p.services = make([]group[K, V], 0, p.expected)
	}
	p.services = append(p.services, g)
}

// Services adds the Services of a change, as render returns them for a host: those that may have other entries, or all
// in a comparison. If the kernel does not accept a shared entry, a comparison refuses the Services that need it.
func (p *Plan[K, V]) Services(c route.Change, render func(*route.Service, *route.Host) []Entry[K, V]) {
	host := &c.Table.Host
	if p.found == nil {
		before := cmp.Or(c.OldHost, host)
		c.Each(func(name cluster.Name, old, now *route.Service) {
			p.Service(name, render(old, before), render(now, host))
		})
		return
	}
	names := c.Table.Order()
	after := func(name cluster.Name) []Entry[K, V] { return render(c.InKernel(name), host) }
	p.Expect(len(names))
	for _, name := range names {
		p.Service(name, nil, after(name))
	}
	users := sync.OnceValue(func() map[K][]cluster.Name {
		all := map[K][]cluster.Name{}
		for _, name := range names {
			for _, e := range after(name) {
				if list := all[e.Key]; p.handling(e.Key).Shared && (len(list) == 0 || list[len(list)-1] != name) {
					all[e.Key] = append(list, name)
				}
			}
		}
		return all
	})
	p.Users(func(k K) []cluster.Name { return users()[k] })
}

// Depend adds the change of shared entries that are in use and depend on the host. The
// function returns both values of such an entry.
func (p *Plan[K, V]) Depend(values func(K) (old, now V, depends bool)) {
	for key := range p.ledger.uses {
		if old, now, depends := values(key); depends {
			p.need(Entry[K, V]{key, old}, -1)
			p.need(Entry[K, V]{key, now}, 1)
		}
	}
}

// Users has a function return the Services that need a shared entry, which are refused
// if the kernel does not accept it. Without it such a refusal is an error.
func (p *Plan[K, V]) Users(of func(K) []cluster.Name) { p.users = of }

func (p *Plan[K, V]) difference(old, now []Entry[K, V], added, removed *group[K, V]) {
	if p.found != nil {
		p.compare(now, added)
		return
	}
	p.differ(old, now, added, removed)
}

// compare adds what the kernel lacks of entries. A shared entry is compared when the first Service needs it.
func (p *Plan[K, V]) compare(now []Entry[K, V], added *group[K, V]) {
	for i, e := range now {
		to := added
		if p.handling(e.Key).Shared {
			p.counts[e.Key]++
			if p.counts[e.Key] > 1 {
				continue
			}
			to = p.came(e.Key)
		}
		had, is := p.found.Take(e)
		if to == added && is != Equal && added.steps == nil {
			added.steps = make([]Step[K, V], 0, len(now)-i)
		}
		p.want(to, e, had, is)
	}
}

func (p *Plan[K, V]) differ(old, now []Entry[K, V], added, removed *group[K, V]) {
	before := make(MapListing[K, V], len(old))
	for _, e := range old {
		if p.handling(e.Key).Shared {
			p.need(e, -1)
			continue
		}
		before[e.Key] = e.Value
	}
	for i, e := range now {
		if p.handling(e.Key).Shared {
			p.need(e, 1)
			continue
		}
		had, is := before.Take(e)
		if is != Equal && added.steps == nil {
			n := len(now) - i // a new Service needs all its entries
			if len(old) > 0 {
				n = min(n, usual)
			}
			added.steps = make([]Step[K, V], 0, n)
		}
		p.want(added, e, had, is)
	}
	if len(now) == 0 {
		removed.steps = slices.Grow(removed.steps, 2*len(before))
	}
	for _, e := range old {
		if _, left := before[e.Key]; left {
			p.remove(removed, e)
		}
	}
}

// usual is how many steps most changes of a Service take.
const usual = 8

func (p *Plan[K, V]) want(g *group[K, V], e Entry[K, V], had V, is Match) {
	switch is {
	case Absent:
		p.add(g, Step[K, V]{Op: Add, Key: e.Key, New: e.Value})
	case Different:
		p.add(g, Step[K, V]{Op: Change, Key: e.Key, Old: had, New: e.Value})
	case Equal:
		if p.found != nil {
			p.kept++
		}
	}
}

func (p *Plan[K, V]) remove(g *group[K, V], e Entry[K, V]) {
	p.add(g, Step[K, V]{Op: Remove, Key: e.Key, Old: e.Value})
}

// add adds a step with its phase, and the one that empties an entry before it is removed.
func (p *Plan[K, V]) add(g *group[K, V], s Step[K, V]) {
	k := p.handling(s.Key)
	switch s.Op {
	case Add:
		s.Phase = k.Add
	case Change:
		s.Phase = k.Change
	case Empty:
		s.Phase = k.Empty
	case Remove:
		if s.Phase = k.Remove; k.Empty != 0 {
			p.add(g, Step[K, V]{Op: Empty, Key: s.Key, Old: s.Old})
		}
	}
	g.steps = append(g.steps, s)
	g.size += p.writer.Size(s)
}

func (p *Plan[K, V]) handling(key K) Handling { return p.ledger.handling(key) }

// End adds what becomes of shared entries and of entries that a comparison found and no Service needs.
func (p *Plan[K, V]) End() {
	if p.found != nil {
		p.endComparison()
		return
	}
	counts := p.ledger.uses
	for _, key := range slices.SortedFunc(maps.Keys(p.uses), p.ledger.order) {
		p.share(key, p.uses[key], counts[key])
	}
	p.Learn(func() { p.count(counts) })
	p.move()
}

// Next ends a plan of a comparison in place of End, and begins a plan for further Services of
// it, which also gets what comes after all Services. Apply is called for p first, but it may
// run while the next plan is computed. What it learns about refusals is for both.
func (p *Plan[K, V]) Next(w Writer[K, V]) *Plan[K, V] {
	p.sort()
	next := &Plan[K, V]{
		ledger: p.ledger, writer: w, found: p.found, last: p.last,
		counts: p.counts, lacking: p.lacking, refused: p.refused,
	}
	p.last = group[K, V]{}
	return next
}

func (p *Plan[K, V]) sort() {
	slices.SortStableFunc(p.first.steps[p.hosts:], p.inOrder)
	slices.SortStableFunc(p.last.steps, p.inOrder)
}

func (p *Plan[K, V]) inOrder(a, b Step[K, V]) int { return p.ledger.order(a.Key, b.Key) }

func (p *Plan[K, V]) endComparison() {
	p.sort()
	rest := p.found.Rest()
	slices.SortFunc(rest, p.inOrder)
	for _, s := range rest {
		p.add(p.gone(s.Key), s)
	}
	p.Learn(func() {
		for key := range p.lacking {
			delete(p.counts, key)
		}
		p.ledger.uses = p.counts
	})
}

// move turns the removal of an entry from one Service and its addition to another into a change of the latter.
func (p *Plan[K, V]) move() {
	removed := map[K]V{}
	p.Each(func(s *Step[K, V]) {
		if s.Op == Remove {
			removed[s.Key] = s.Old
		}
	})
	if len(removed) == 0 {
		return
	}
	moved := map[K]bool{}
	p.Each(func(s *Step[K, V]) {
		old, there := removed[s.Key]
		if !there || s.Op != Add {
			return
		}
		s.Op, s.Phase, s.Old = Change, p.handling(s.Key).Change, old
		moved[s.Key] = true
	})
	if len(moved) == 0 {
		return
	}
	for _, g := range p.groups() {
		p.takeOut(g, func(s Step[K, V]) bool { return (s.Op == Remove || s.Op == Empty) && moved[s.Key] })
		g.size = p.size(g.steps) // a change may be larger than an addition
	}
	p.postpone() // the moved entries still lead to them
}

func (p *Plan[K, V]) size(steps []Step[K, V]) int {
	n := 0
	for _, s := range steps {
		n += p.writer.Size(s)
	}
	return n
}

// Each calls a function with every step, except those of a Rewrite.
func (p *Plan[K, V]) Each(do func(*Step[K, V])) {
	for _, g := range p.groups() {
		for i := range g.steps {
			do(&g.steps[i])
		}
	}
}

// groups returns all groups in the order in which they are written.
func (p *Plan[K, V]) groups() []*group[K, V] {
	list := make([]*group[K, V], 0, len(p.services)+2)
	list = append(list, &p.first)
	for i := range p.services {
		list = append(list, &p.services[i])
	}
	return append(list, &p.last)
}

// takeOut removes steps from a group and returns them.
func (p *Plan[K, V]) takeOut(g *group[K, V], is func(Step[K, V]) bool) []Step[K, V] {
	var out, left []Step[K, V]
	for _, s := range g.steps {
		if is(s) {
			out = append(out, s)
			g.size -= p.writer.Size(s)
			continue
		}
		left = append(left, s)
	}
	if len(out) > 0 {
		g.steps = left
	}
	return out
}

// Rewrite replaces some removals. It is called after End, at most once.
func (p *Plan[K, V]) Rewrite(r Rewrite[K, V]) {
	p.late = &r
	for _, g := range p.groups() {
		p.takeOut(g, func(s Step[K, V]) bool { return s.Op == Remove && r.Replaces(s.Key) })
	}
	p.postpone()
}

// postpone removes the targets of Services after all Services are written.
func (p *Plan[K, V]) postpone() {
	targets := func(s Step[K, V]) bool { return (s.Op == Empty || s.Op == Remove) && p.handling(s.Key).Target }
	for i := range p.services {
		for _, s := range p.takeOut(&p.services[i], targets) {
			p.last.steps = append(p.last.steps, s)
			p.last.size += p.writer.Size(s)
		}
	}
}

// Learn has a function called when Apply succeeds.
func (p *Plan[K, V]) Learn(f func()) { p.learn = append(p.learn, f) }
