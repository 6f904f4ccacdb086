package proxy

import (
	"context"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Cause is the reason for a comparison of everything with the kernel.
type Cause string

// The causes.
const (
	Change      Cause = ""             // no comparison: a change is written
	Start       Cause = "start"        // no write has succeeded yet
	Failure     Cause = "failure"      // a write failed, so that the kernel may hold anything
	ForeignEdit Cause = "foreign-edit" // another program changed rules of the plane
	Request     Cause = "request"      // a user requested it
	Period      Cause = "period"       // the periodic comparison
)

// String returns the cause, "change" for Change.
func (c Cause) String() string {
	if c == Change {
		return "change"
	}
	return string(c)
}

// Causes lists the causes of comparisons, all except Change.
func Causes() []Cause { return []Cause{Start, Failure, ForeignEdit, Request, Period} }

// Sync is the result of one attempt to write.
type Sync struct {
	Cause    Cause // Change: a change was written; otherwise everything was compared
	Services int   // touched
	Steps    int   // of a comparison: how much the kernel differed
	Adopted  int   // of a comparison: entries found in the kernel that are right
	Began    time.Time
	Compile  time.Duration
	Apply    time.Duration // reading and planning included; followers are notified afterwards
	Refused  int           // Services whose rules the kernel rejects
	Known    int           // all Services
	Vital    cluster.Name  // one of the refused Services without which a node does not work; zero: none of them is
	Err      error

	// In has the changes that are in the kernel since this write; empty after an error.
	In cluster.Window
}

// end records that the attempt to write has ended.
func (s *Sync) end() { s.Apply = time.Since(s.Began) - s.Compile }

// Took returns how long the attempt took.
func (s Sync) Took() time.Duration { return s.Compile + s.Apply }

// Full reports whether everything was compared with the kernel.
func (s Sync) Full() bool { return s.Cause != Change }

// Repair reports whether the write repaired rules that had been missing or wrong. What a
// start writes is no repair, nor is a further attempt to write refused Services.
func (s Sync) Repair() bool {
	return s.Err == nil && s.Refused == 0 && s.Steps > 0 && s.Cause.repairs()
}

// RepairCauses lists the causes of comparisons that can be repairs.
func RepairCauses() []Cause {
	return slices.DeleteFunc(Causes(), func(c Cause) bool { return !c.repairs() })
}

// audit reports whether no fault is known that the comparison would repair.
func (c Cause) audit() bool { return c == Request || c == Period }

func (c Cause) repairs() bool { return c != Change && c != Start }

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
