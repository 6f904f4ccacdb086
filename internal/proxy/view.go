package proxy

import (
	"context"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// View is the state of the loop between two writes. Nothing in it changes, however long it is kept.
type View struct {
	Routes *route.Snapshot // what should be in the kernel
	Writes uint64          // attempts to write since the start

	// Pending has the changes that may not be in the kernel yet. Err is the error of the
	// last attempt to write, nil after a success and before the first one.
	Pending Pending
	Refused map[cluster.Name]error // Services that the kernel rejects
	Listed  bool                   // Routes has all objects; before, it has none
	Started bool                   // a write of everything has succeeded
	Err     error
}

// View returns the state of the loop. It waits for the write in progress, and returns an error if the context ends
// first. It takes constant time, whatever the number of Services, so that queries do not delay writes.
func (l *Loop) View(ctx context.Context) (v View, err error) {
	err = l.request(ctx, func() {
		v = View{
			Routes: l.opt.Compiler.Snapshot(), Writes: l.writes,
			Pending: Pending{l.pending.Copy()}, Refused: l.refused.services, Listed: l.listed, Started: l.started,
			Err: l.failure,
		}
	})
	return v, err
}

// Pending has changes of Services that may not be in the kernel yet, sorted by name.
type Pending struct{ *btree.BTreeG[route.Touch] }

// NewPending returns a Pending with these changes.
func NewPending(touched ...route.Touch) Pending {
	less := func(a, b route.Touch) bool { return a.Name.Compare(b.Name) < 0 }
	p := Pending{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
	for _, t := range touched {
		p.Set(t)
	}
	return p
}

// Of returns the pending change of a Service; the zero Touch if there is none.
func (p Pending) Of(name cluster.Name) route.Touch {
	t, _ := p.Get(route.Touch{Name: name})
	return t
}

// Has reports whether a change of the Service is pending.
func (p Pending) Has(name cluster.Name) bool { return p.Of(name).Name == name }
