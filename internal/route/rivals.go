package route

import (
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// rivals are the Services that ask for one claim, two or more, sorted by precedence: the owner comes first.
// Adding or removing one of n Services takes O(log n) time.
type rivals struct {
	sorted *btree.BTreeG[*cluster.Service]

	// holder is the owner, for goroutines other than the one of the Compiler.
	holder atomic.Pointer[cluster.Service]
}

func newRivals(k claim, owner *cluster.Service) *rivals {
	less := func(a, b *cluster.Service) bool { return k.precedence(a, b) < 0 }
	r := &rivals{sorted: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
	r.sorted.Set(owner)
	return r
}

func (r *rivals) owner() *cluster.Service {
	first, _ := r.sorted.Min()
	return first
}

func (r *rivals) add(svc *cluster.Service) {
	r.sorted.Set(svc)
	r.holder.Store(r.owner())
}

// remove removes a Service. At least one other one remains.
func (r *rivals) remove(svc *cluster.Service) {
	r.sorted.Delete(svc)
	r.holder.Store(r.owner())
}
