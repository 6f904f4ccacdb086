// Package cow has a sorted set that is cloned in constant time. A clone shares its contents
// with the original, and each of them copies only the parts that it changes (copy on
// write).
package cow

import (
	"iter"

	"github.com/tidwall/btree"
)

// Set is a set of values sorted by a key that is part of each value. One
// goroutine may change a Set while others read clones of it. The zero Set is
// not usable: see New.
type Set[V any] struct{ tree *btree.BTreeG[V] }

// New returns an empty Set. Two values have the same key if compare returns 0; compare must
// depend on the key only.
func New[V any](compare func(a, b V) int) Set[V] {
	less := func(a, b V) bool { return compare(a, b) < 0 }
	return Set[V]{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

// Get returns the value that has the key of like; the zero value if there is
// none.
func (s Set[V]) Get(like V) V {
	v, _ := s.tree.Get(like)
	return v
}

// Put adds a value, or replaces the one that has its key. The cost is logarithmic, even for the first change after
// Clone.
func (s Set[V]) Put(v V) { s.tree.Set(v) }

// Delete removes the value that has the key of like, if there is one.
func (s Set[V]) Delete(like V) { s.tree.Delete(like) }

// Len returns the number of values.
func (s Set[V]) Len() int { return s.tree.Len() }

// All returns the values in order. The Set must not change meanwhile.
func (s Set[V]) All() iter.Seq[V] { return s.tree.Scan }

// Clone returns a Set with the same values, in constant time. Later changes of one do not
// affect the other.
func (s Set[V]) Clone() Set[V] { return Set[V]{s.tree.Copy()} }
