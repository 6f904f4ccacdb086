package manifest

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/report"
)

// rank orders files: by the path that was asked for, then by name.
type rank struct {
	root int
	path string
}

func (r rank) compare(s rank) int {
	return cmp.Or(cmp.Compare(r.root, s.root), strings.Compare(r.path, s.path))
}

// claim is one object as one file has it.
type claim struct {
	from   rank
	object *object
}

// index knows which file says what, decides which of two counts, and brings
// the Store up to date. The cost of a change follows the objects changed.
type index struct {
	store  *cluster.Store
	report *report.Reporter

	claims   map[key][]claim  // sorted by rank; the first counts
	disputes map[key]struct{} // of which contest has yet to say who counts
	cidrs    map[cluster.Name][]netip.Prefix
	backends backends
}

func newIndex(store *cluster.Store, r *report.Reporter) *index {
	return &index{
		store:    store,
		report:   r,
		claims:   map[key][]claim{},
		disputes: map[key]struct{}{},
		cidrs:    map[cluster.Name][]netip.Prefix{},
		backends: newBackends(),
	}
}

// turn is one object that counts from now on in place of another; nil: none.
type turn struct {
	key      key
	old, new *object
}

// replace says that a file now has other content.
func (x *index) replace(from rank, old, now content) {
	var turns []turn
	said := make(map[key]struct{}, len(now.objects))
	for _, o := range now.objects {
		said[o.key] = struct{}{}
		turns = x.claim(turns, o.key, claim{from, o})
	}
	for _, o := range old.objects {
		if _, ok := said[o.key]; !ok {
			turns = x.claim(turns, o.key, claim{from: from})
		}
	}
	x.apply(turns)
}

// claim puts in a file's claim of an object; one without an object is
// withdrawn. If another one counts now, that is a turn.
func (x *index) claim(turns []turn, k key, c claim) []turn {
	claims := x.claims[k]
	var old, now *object
	if len(claims) > 0 {
		old = claims[0].object
	}
	before := len(claims)
	i, found := slices.BinarySearchFunc(claims, c.from, func(c claim, r rank) int { return c.from.compare(r) })
	switch {
	case found && c.object != nil:
		claims[i] = c
	case found:
		claims = slices.Delete(claims, i, i+1)
	case c.object != nil:
		claims = slices.Insert(claims, i, c)
	}
	if len(claims) > 0 {
		now = claims[0].object
		x.claims[k] = claims
	} else {
		delete(x.claims, k)
	}
	if before > 1 || len(claims) > 1 {
		x.disputes[k] = struct{}{}
	}
	if old == now {
		return turns
	}
	return append(turns, turn{k, old, now})
}

// contest reports the objects that are in two files. Those in a file that is
// gone wait until that is settled: the file may have got another name.
func (x *index) contest(gone func(path string) bool) {
	known := map[string]bool{}
	isGone := func(c claim) bool {
		is, ok := known[c.from.path]
		if !ok {
			is = gone(c.from.path)
			known[c.from.path] = is
		}
		return is
	}
	for _, k := range slices.SortedFunc(maps.Keys(x.disputes), key.compare) {
		claims := x.claims[k]
		if len(claims) > 1 && slices.ContainsFunc(claims, isGone) {
			continue
		}
		x.report.Set("claims "+k.String(), contested(k, claims))
		delete(x.disputes, k)
	}
}

// contested says which files lose an object to the first.
func contested(k key, claims []claim) []route.Problem {
	var out []route.Problem
	for i := 1; i < len(claims); i++ {
		out = append(out, route.Problem{
			Object: claims[i].from.path + ": " + k.String(),
			Reason: "also in " + claims[0].from.path + ", which counts",
		})
	}
	return out
}

// apply brings the Store up to date: Services go first and come last, so that
// none is ever seen without the endpoints it has.
func (x *index) apply(turns []turn) {
	slices.SortFunc(turns, func(a, b turn) int { return a.key.compare(b.key) })
	for _, t := range turns {
		x.backends.note(t)
		if t.key.kind == kindService && t.new == nil {
			x.store.DeleteService(t.key.name)
		}
	}
	cidrs := false
	for _, t := range turns {
		switch t.key.kind {
		case kindEndpointSlice:
			x.applySlice(t)
		case kindNode:
			x.applyNode(t)
		case kindServiceCIDR:
			cidrs = true
			x.cidrs[t.key.name], _ = valueOf[[]netip.Prefix](t.new)
			if t.new == nil {
				delete(x.cidrs, t.key.name)
			}
		}
	}
	if cidrs {
		x.applyCIDRs()
	}
	x.backends.settle(x.store)
	for _, t := range turns {
		if svc, ok := valueOf[service](t.new); ok {
			x.store.SetService(svc.Service)
		}
	}
}

func (x *index) applySlice(t turn) {
	if sl, ok := valueOf[*cluster.Slice](t.new); ok {
		x.store.SetSlice(sl)
		return
	}
	x.store.DeleteSlice(t.key.name)
}

// applyNode sets the own Node; others have no value.
func (x *index) applyNode(t turn) {
	_, was := valueOf[*cluster.Node](t.old)
	n, is := valueOf[*cluster.Node](t.new)
	if was || is {
		x.store.SetNode(n)
	}
}

func (x *index) applyCIDRs() {
	var all []netip.Prefix
	for _, cidrs := range x.cidrs {
		all = append(all, cidrs...)
	}
	x.store.SetServiceCIDRs(all)
}

// valueOf returns the value of an object, if it has one of the type.
func valueOf[T any](o *object) (T, bool) {
	var none T
	if o == nil {
		return none, false
	}
	v, ok := o.value.(T)
	return v, ok
}

// podOf returns the Pod an object is, or nil.
func podOf(o *object) *convert.Pod {
	p, _ := valueOf[*convert.Pod](o)
	return p
}
