package route

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// rivals are the Services that ask for one claim, two or more, with the owner first.
type rivals struct {
	claim claim
	list  []*cluster.Service // sorted by precedence

	// holder is the owner, for goroutines other than the one of the Compiler.
	holder atomic.Pointer[cluster.Service]
}

func newRivals(k claim, owner *cluster.Service) *rivals {
	return &rivals{claim: k, list: []*cluster.Service{owner}}
}

func (r *rivals) owner() *cluster.Service { return r.list[0] }

func (r *rivals) add(svc *cluster.Service) {
	at, _ := slices.BinarySearchFunc(r.list, svc, r.claim.precedence)
	r.list = slices.Insert(r.list, at, svc)
	r.holder.Store(r.owner())
}

// remove removes a Service. At least one other one remains.
func (r *rivals) remove(svc *cluster.Service) {
	at, _ := slices.BinarySearchFunc(r.list, svc, r.claim.precedence)
	r.list = slices.Delete(r.list, at, at+1)
	r.holder.Store(r.owner())
}
