package manifest

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// rank orders files: by the root that they belong to, then by name.
type rank struct {
	root int
	path string
}

func (r rank) compare(s rank) int {
	return cmp.Or(cmp.Compare(r.root, s.root), strings.Compare(r.path, s.path))
}

// claim is one object in one file.
type claim struct {
	from   rank
	object *object
}

// index records the objects of each file, decides which of two files with the same
// object counts, and updates the Store. The cost of a change follows the objects
// changed.
type index struct {
	store  *cluster.Store
	report *source.Reporter

	claims     map[key][]claim  // sorted by rank; the first counts
	duplicates map[key]struct{} // not examined by reportDuplicates yet
	cidrs      map[cluster.Name][]netip.Prefix
	backends   backends
}

func newIndex(store *cluster.Store, r *source.Reporter) *index {
	return &index{
		store:      store,
		report:     r,
		claims:     map[key][]claim{},
		duplicates: map[key]struct{}{},
		cidrs:      map[cluster.Name][]netip.Prefix{},
		backends:   newBackends(),
	}
}

// change replaces one object by another; nil: none.
type change struct {
	key      key
	old, new *object
}

// replace replaces the content of a file.
func (x *index) replace(from rank, old, now content) {
	var changes []change
	present := make(map[key]struct{}, len(now.objects))
	for _, o := range now.objects {
		present[o.key] = struct{}{}
		changes = x.claim(changes, o.key, claim{from, o})
	}
	for _, o := range old.objects {
		if _, ok := present[o.key]; !ok {
			changes = x.claim(changes, o.key, claim{from: from})
		}
	}
	x.apply(changes)
}

// claim records a file's claim of an object, or deletes it if the claim has no
// object. It appends a change if another object counts now.
func (x *index) claim(changes []change, k key, c claim) []change {
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
		x.duplicates[k] = struct{}{}
	}
	if old == now {
		return changes
	}
	return append(changes, change{k, old, now})
}

// reportDuplicates reports the objects that are in two files. It leaves out objects
// in a file that no longer exists until refresh has seen that: the file may have
// been renamed.
func (x *index) reportDuplicates(gone func(path string) bool) {
	known := map[string]bool{}
	isGone := func(c claim) bool {
		is, ok := known[c.from.path]
		if !ok {
			is = gone(c.from.path)
			known[c.from.path] = is
		}
		return is
	}
	for _, k := range slices.SortedFunc(maps.Keys(x.duplicates), key.compare) {
		claims := x.claims[k]
		if len(claims) > 1 && slices.ContainsFunc(claims, isGone) {
			continue
		}
		x.report.Set("claims "+k.String(), duplicateProblems(k, claims))
		delete(x.duplicates, k)
	}
}

// duplicateProblems names the files whose object does not count.
func duplicateProblems(k key, claims []claim) []route.Problem {
	var out []route.Problem
	for i := 1; i < len(claims); i++ {
		out = append(out, route.Problem{
			Object: claims[i].from.path + ": " + k.String(),
			Reason: "also in " + claims[0].from.path + ", which takes precedence",
		})
	}
	return out
}

// apply updates the Store. It deletes Services first and sets them last, so that no
// Service is ever seen without its endpoints.
func (x *index) apply(changes []change) {
	slices.SortFunc(changes, func(a, b change) int { return a.key.compare(b.key) })
	for _, t := range changes {
		x.backends.note(t)
		if t.key.kind == kindService && t.new == nil {
			x.store.DeleteService(t.key.name)
		}
	}
	cidrs := false
	for _, t := range changes {
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
	x.backends.flush(x.store)
	for _, t := range changes {
		if svc, ok := valueOf[service](t.new); ok {
			x.store.SetService(svc.Service)
		}
	}
}

func (x *index) applySlice(t change) {
	if sl, ok := valueOf[*cluster.Slice](t.new); ok {
		x.store.SetSlice(sl)
		return
	}
	x.store.DeleteSlice(t.key.name)
}

// applyNode sets the own Node; others have no value.
func (x *index) applyNode(t change) {
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

// podOf returns the Pod in an object, or nil.
func podOf(o *object) *convert.Pod {
	p, _ := valueOf[*convert.Pod](o)
	return p
}
