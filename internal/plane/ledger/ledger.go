// Package ledger is the half of a data plane that does not depend on the kernel mechanism. A plane renders each
// Service, and the host, into entries: a key and a value, such as an element of a map, a chain with its rules, a
// virtual server. The ledger compares two renderings of a Service, or a rendering with a listing of the kernel, and
// writes the difference through a Writer in an order in which every packet finds its way. It counts how many Services
// need an entry that they share, and leaves out only the Services whose entries the kernel refuses.
//
// A ledger stores nothing about a Service except the counts of shared entries, so
// a change costs what the Services in it cost.
package ledger

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Entry is one object in the kernel. No two Services have entries with the same key, unless their Kind is Shared.
type Entry[K, V comparable] struct {
	Key   K
	Value V
}

// Match compares an entry with one that is there, if any.
func (e Entry[K, V]) Match(had V, there bool) (V, Match) {
	var none V
	switch {
	case !there:
		return none, Absent
	case had == e.Value:
		return had, Equal
	}
	return had, Different
}

// Phase orders the steps of one transaction, the lowest first. Phases count from 1.
type Phase uint8

// Handling says how entries with a key are written.
type Handling struct {
	Add, Change, Remove Phase

	// Empty is the phase of a step of its own that empties an entry before any of
	// its kind is removed, for entries that may lead to each other. 0: none.
	Empty Phase

	// Target: other entries lead to it. It is written before the Services that share it, and removed after them. It stays
	// while a Service is refused whose entries in the kernel may lead there.
	Target bool

	// Checked: Writer does not remove a target that an entry in the kernel leads to, so the removal
	// does not wait for refused Services.
	Checked bool

	// Shared: several Services may need it. It is there as long as one does.
	Shared bool

	// Early: an added entry may be written some time before the other entries of its
	// Service. Large Services are divided in this way.
	Early bool
}

// Op is an operation on an entry.
type Op uint8

// The operations.
const (
	Add Op = iota
	Change
	Empty
	Remove
)

// Step is one operation. Old is the value before, New the value after; an added entry has no Old, a removed one no New.
type Step[K, V comparable] struct {
	Op       Op
	Phase    Phase
	Key      K
	Old, New V
}

// Writer writes entries into the kernel.
type Writer[K, V comparable] interface {
	// Write carries out steps, which are in the order of their phases. It returns a Refusal if the kernel does not accept
	// some of them. After any other error nobody knows which of them were carried out.
	Write(ctx context.Context, steps []*Step[K, V]) error

	// Print returns what Write would write, in the mechanism's own language.
	Print(steps []*Step[K, V]) string

	// Room is how much one Write contains, in the unit of Size.
	Room() int

	// Size returns how much of a Write a step takes; at least 1.
	Size(Step[K, V]) int
}

// Refusal is the error of a Write that the kernel did not accept. All steps of
// phases before Phase are carried out, and none of the others.
type Refusal struct {
	Phase Phase
	Err   error
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Err }

// Listing is what the kernel holds. It is used for one Plan.
type Listing[K, V comparable] interface {
	// Take returns what the kernel holds under the key of an entry, and marks it as
	// wanted. For an entry that is equal the value does not matter.
	Take(want Entry[K, V]) (had V, is Match)

	// Rest returns the steps, without phases, that remove everything that is owned by the plane and was not taken.
	Rest() []Step[K, V]
}

// MapListing is a Listing of entries by their keys, all of which are owned by the plane. It removes entries that are
// taken.
type MapListing[K, V comparable] map[K]V

// Take implements Listing.
func (l MapListing[K, V]) Take(want Entry[K, V]) (had V, is Match) {
	had, there := l[want.Key]
	delete(l, want.Key)
	return want.Match(had, there)
}

// Rest implements Listing.
func (l MapListing[K, V]) Rest() []Step[K, V] {
	var list []Step[K, V]
	for key, value := range l {
		list = append(list, Step[K, V]{Op: Remove, Key: key, Old: value})
	}
	return list
}

// Match says how an entry in the kernel compares with the wanted one.
type Match uint8

// The results of a comparison.
const (
	Absent Match = iota
	Different
	Equal
)

// Ledger makes plans. One goroutine uses it.
type Ledger[K, V comparable] struct {
	handling func(K) Handling
	order    func(a, b K) int
	uses     map[K]int32 // how many Services need a shared entry
}

// New returns an empty Ledger for entries with some handling, and an order of those that belong to no single Service.
// Its first plan must be a comparison.
func New[K, V comparable](handling func(K) Handling, order func(a, b K) int) *Ledger[K, V] {
	return &Ledger[K, V]{handling: handling, order: order, uses: map[K]int32{}}
}

// Change begins a plan from what the last plan left in the kernel.
func (l *Ledger[K, V]) Change(w Writer[K, V]) *Plan[K, V] {
	return &Plan[K, V]{ledger: l, writer: w, uses: map[K]use[V]{}}
}

// Compare begins a plan from what a listing says. It trusts nothing that the ledger knew before.
func (l *Ledger[K, V]) Compare(w Writer[K, V], found Listing[K, V]) *Plan[K, V] {
	return &Plan[K, V]{
		ledger: l, writer: w, found: found, counts: map[K]int32{}, lacking: map[K]bool{}, refused: plane.Refused{},
	}
}

// group is what a plan writes for one Service, or, without a name, for all.
type group[K, V comparable] struct {
	service cluster.Name
	steps   []Step[K, V]
	size    int
}

func (g *group[K, V]) common() bool { return g.service == cluster.Name{} }
