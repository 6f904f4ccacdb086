// Package conntrack follows what is applied and ends flows that it left behind.
//
// Over UDP the kernel keeps sending a flow where its first packet went, also
// when that backend is gone, or when the Service had none then. TCP and SCTP
// find out by themselves; UDP senders that expect no answer never do.
//
// Over TCP and SCTP a connection may never begin: if its first packet came
// before anybody translated it, so is treated every one sent again, and for two
// minutes whatever another client sends from the same port.
//
// It deletes exactly the flows that are wrong, at a cost that follows the
// change, and off the path of the change.
package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// secondLook is how long after a look the same is looked at again: a packet
	// that was on its way through the old rules may have made a flow just after.
	secondLook = 2 * time.Second

	// rest is how many times longer than it worked the follower then pauses, so
	// that it takes a fifth of one CPU at most, however large the table and
	// however many the changes.
	rest    = 4
	maxRest = 5 * time.Second

	// After a failure it waits minRetry, then twice as long each time.
	minRetry = 100 * time.Millisecond
	maxRetry = 30 * time.Second

	// maxFailures is how many deletions may fail in one look before it ends.
	maxFailures = 100
)

// Table is what is needed of the kernel.
type Table interface {
	Each(ctx context.Context, f kernel.Filter, fn func(kernel.Entry) error) error
	Delete(ctx context.Context, e kernel.Entry) error
}

// Options are the parts of a Follower.
type Options struct {
	Table  Table
	Report func(error) // called when a look failed and will be repeated; may be nil

	// Looked is told after each look how long it took, and how many flows of
	// each family it ended. It may be nil.
	Looked func(took time.Duration, ended map[route.Family]int)
}

// Follower deletes flows that a change left behind. All methods may be
// called from any goroutine.
type Follower struct {
	opts  Options
	count counters
	wake  chan struct{}

	mu      sync.Mutex
	index   *index
	pending work
	later   work // second looks
}

// New returns a Follower that knows of nothing yet.
func New(opts Options) *Follower {
	return &Follower{
		opts:  opts,
		wake:  make(chan struct{}, 1),
		index: newIndex(), pending: work{}, later: work{},
	}
}

// Applied tells of a change that the kernel follows now. It does not wait for
// the kernel. What was touched by a change that failed must be in a later one.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue(f.index.apply(c))
	begun, over := handshakes(c)
	for _, k := range over {
		delete(f.pending, k)
		delete(f.later, k)
	}
	f.queue(begun)
}

// Repaired tells that the kernel did not do for a while what the table says, and
// does again: any flow may have been made meanwhile.
func (f *Follower) Repaired(t *route.Table) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.index.everything()
	for _, s := range t.Services {
		for k := range leading(s) {
			w[k] = need{all: true}
		}
	}
	f.queue(w)
}

// SetLocal tells which addresses this host has: all of them, each time. NodePorts
// of every local address are looked for at these, loopback ones excepted.
func (f *Follower) SetLocal(addrs []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue(f.index.setLocal(addrs))
}

func (f *Follower) queue(w work) {
	if len(w) == 0 {
		return
	}
	f.pending = f.pending.with(w)
	select {
	case f.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run looks for stale flows until ctx is done, and returns nil then.
func (f *Follower) Run(ctx context.Context) error {
	failed := 0
	for ctx.Err() == nil {
		w, wait := f.take(time.Now())
		if len(w) == 0 {
			f.idle(ctx, wait)
			continue
		}
		started := time.Now()
		ended := map[route.Family]int{}
		err := f.look(ctx, w, ended)
		now := time.Now()
		if f.opts.Looked != nil {
			f.opts.Looked(now.Sub(started), ended)
		}
		if ctx.Err() != nil {
			return nil
		}
		pause := min(rest*now.Sub(started), maxRest)
		if err == nil {
			failed = 0
			f.lookAgain(w, now.Add(secondLook))
		} else {
			pause = min(minRetry<<min(failed, 10), maxRetry)
			failed++
			f.failed(w, err)
		}
		sleep(ctx, pause)
	}
	return nil
}

// take returns all work that is due, and how long there is none after that; 0
// means until somebody brings some.
func (f *Follower) take(now time.Time) (work, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.pending
	f.pending = work{}
	var wait time.Duration
	for k, n := range f.later {
		if left := n.second.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		delete(f.later, k)
		w.add(k, n)
	}
	return w, wait
}

// lookAgain puts down first looks for a second one.
func (f *Follower) lookAgain(w work, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, n := range w {
		if !n.second.IsZero() {
			delete(w, k)
			continue
		}
		n.second = at
		w[k] = n
	}
	f.later = f.later.with(w)
}

// failed keeps the work for the next time.
func (f *Follower) failed(w work, err error) {
	f.count.failures.Add(1)
	f.mu.Lock()
	f.pending = f.pending.with(w)
	f.mu.Unlock()
	if f.opts.Report != nil {
		f.opts.Report(err)
	}
}

// look does the work once, and counts the flows it ended. A deletion that fails
// does not keep others from being made.
func (f *Follower) look(ctx context.Context, w work, ended map[route.Family]int) error {
	f.count.looks.Add(1)
	var failures []error
	for _, filter := range w.listings() {
		err := f.opts.Table.Each(ctx, filter, func(e kernel.Entry) error {
			stale, err := f.judge(ctx, e, w)
			if stale && err == nil {
				ended[route.FamilyOf(e.OrigDst.Addr())]++
			}
			if err == nil {
				return nil
			}
			if failures = append(failures, err); len(failures) < maxFailures {
				return nil
			}
			return errors.New("too many deletions failed")
		})
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
	}
	return errors.Join(failures...)
}

// judge deletes a flow that is stale by what is known at this moment: the state
// may be newer than the work that led here.
func (f *Follower) judge(ctx context.Context, e kernel.Entry, w work) (stale bool, err error) {
	f.mu.Lock()
	stale = f.index.stale(e, w)
	f.mu.Unlock()
	if !stale {
		return false, nil
	}
	if err := f.opts.Table.Delete(ctx, e); err != nil {
		return true, err
	}
	f.count.deleted.Add(1)
	return true, nil
}

// idle waits for work, or for the next second look.
func (f *Follower) idle(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		due = time.After(wait)
	}
	select {
	case <-ctx.Done():
	case <-f.wake:
	case <-due:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type counters struct{ looks, deleted, failures atomic.Uint64 }

// Stats are what a Follower did since it was made.
type Stats struct {
	Looks    uint64 // rounds of work
	Deleted  uint64 // flows that were stale
	Failures uint64 // looks that have to be repeated
	Pending  int    // fronts waiting for their first look
}

// Stats returns the counts so far.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	pending := len(f.pending)
	f.mu.Unlock()
	return Stats{
		Looks:    f.count.looks.Load(),
		Deleted:  f.count.deleted.Load(),
		Failures: f.count.failures.Load(),
		Pending:  pending,
	}
}
