package proxy

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/cow"
	"github.com/sluice-proxy/sluice/internal/route"
)

// View is what the loop knew at one moment between two writes. Nothing in it
// changes, and it may be kept for as long as somebody needs it.
type View struct {
	Routes *route.Snapshot // what should be in the kernel
	Writes uint64          // attempts to write since the start

	// Pending are the Services that may not be in the kernel as Routes says, and
	// Err is why: the last attempt failed, or none was made yet.
	Pending Pending
	Refused map[cluster.Name]error // Services that the kernel rejects
	Started bool                   // everything was in the kernel once
	Err     error
}

// View returns what the loop knows. It waits for the write that is under way,
// and returns an error if the context ends first. The loop does nothing for it
// whose cost follows the number of Services: nobody who asks can hold it up.
func (l *Loop) View(ctx context.Context) (v View, err error) {
	err = l.ask(ctx, func() {
		v = View{
			Routes: l.opt.Compiler.Snapshot(), Writes: l.writes,
			Pending: Pending{l.pending.Clone()}, Refused: l.refused.services, Started: l.started, Err: l.failure,
		}
	})
	return v, err
}

// Pending are the changes of Services that wait to be written, sorted by name.
type Pending struct{ cow.Set[route.Touch] }

// NewPending returns a Pending of these changes.
func NewPending(touched ...route.Touch) Pending {
	p := Pending{cow.New(func(a, b route.Touch) int { return a.Name.Compare(b.Name) })}
	for _, t := range touched {
		p.Put(t)
	}
	return p
}

// Of returns the change of a Service that is pending; the zero Touch if none is.
func (p Pending) Of(name cluster.Name) route.Touch { return p.Get(route.Touch{Name: name}) }

// Has reports whether a change of the Service is pending.
func (p Pending) Has(name cluster.Name) bool { return p.Of(name).Name == name }
