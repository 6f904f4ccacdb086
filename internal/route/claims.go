package route

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claims records which Service owns each claim. If several Services ask for one, the owner is a Service that has the
// address as its ClusterIP, so that no external IP can take over a ClusterIP; then the oldest one, then the first by
// name. The owner does not depend on the order in which the Services arrived.
type claims struct {
	owner  map[claim]*cluster.Service
	rivals map[claim]*rivals // of claims of several Services

	families []Family
	room     []candidate
}

func newClaims(families []Family) *claims {
	return &claims{
		owner:    map[claim]*cluster.Service{},
		rivals:   map[claim]*rivals{},
		families: families,
	}
}

// replace replaces the claims of a Service with the claims of its next version. Either is nil if there is no Service.
// It returns the names of the Services that became or are no longer the owner of a claim. The Services that still do
// not own it are not among them: their routes stay the same, and there may be very many.
func (c *claims) replace(before, after *cluster.Service) []cluster.Name {
	var moved []cluster.Name
	add := func(svc *cluster.Service) {
		if svc != nil && (len(moved) == 0 || moved[len(moved)-1] != svc.Name) {
			moved = append(moved, svc.Name)
		}
	}
	c.each(before, func(k claim) { add(c.release(k, before)) })
	c.each(after, func(k claim) { add(c.take(k, after)) })
	return moved
}

// each calls do with each claim that a Service makes, once; a nil Service makes none.
func (c *claims) each(svc *cluster.Service, do func(claim)) {
	if svc == nil {
		return
	}
	all := func(list []candidate) {
		for _, k := range list {
			if k.twin == k.port {
				do(k.claim)
			}
		}
	}
	eachPort(&c.room, svc, c.families, all)
	all(appendHealthPorts(reuse(c.room), svc, c.families))
}

// take adds a claim of a Service. It returns the former owner if that changes; nil otherwise.
func (c *claims) take(k claim, svc *cluster.Service) *cluster.Service {
	owner := c.owner[k]
	if owner == nil {
		c.owner[k] = svc
		return nil
	}
	rivals := c.rivals[k]
	if rivals == nil {
		rivals = newRivals(k, owner)
		c.rivals[k] = rivals
	}
	rivals.add(svc)
	if rivals.owner() == owner {
		return nil
	}
	c.owner[k] = svc
	return owner
}

// release withdraws a claim of a Service. It returns the next owner if that changes; nil otherwise.
func (c *claims) release(k claim, svc *cluster.Service) *cluster.Service {
	rivals := c.rivals[k]
	if rivals == nil {
		delete(c.owner, k)
		return nil
	}
	rivals.remove(svc)
	next := rivals.owner()
	if rivals.sorted.Len() == 1 {
		delete(c.rivals, k)
	}
	if c.owner[k] == next {
		return nil
	}
	c.owner[k] = next
	return next
}

// precedence compares two Services that ask for the claim; the owner is the first.
func (k claim) precedence(a, b *cluster.Service) int {
	addr := netip.AddrFrom16(k.addr).Unmap()
	mine, theirs := slices.Contains(a.ClusterIPs, addr), slices.Contains(b.ClusterIPs, addr)
	switch {
	case mine && !theirs:
		return -1
	case theirs && !mine:
		return 1
	}
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return a.Name.Compare(b.Name)
}

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
