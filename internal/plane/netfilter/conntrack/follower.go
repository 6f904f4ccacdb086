// Package conntrack deletes the conntrack entries of flows that changes of Services
// made stale.
//
// The kernel sends all packets of a UDP flow to the destination of the first one,
// also when that backend is gone, or when the Service had no backend then. TCP and
// SCTP peers notice; UDP senders that expect no answer never do.
//
// A TCP or SCTP connection may never begin: if its first packet came before there
// were rules for it, retransmissions keep the untranslated conntrack entry, and so do
// connections of other clients from the same port, for two minutes.
//
// The package deletes exactly the stale entries, at a cost that follows the change,
// and does not delay the change.
package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// secondScan is the time from a scan to a second one for the same flows: a packet
	// that was passing the old rules may have made a flow after the first.
	secondScan = 2 * time.Second

	// rest is the pause after a scan as a multiple of its duration: scans take a fifth
	// of one CPU at most, however large the table and however many the changes.
	rest    = 4
	maxRest = 5 * time.Second

	// After a failure it waits minRetry, then twice as long each time.
	minRetry = 100 * time.Millisecond
	maxRetry = 30 * time.Second

	// maxFailures is how many deletions may fail in one scan before it ends.
	maxFailures = 100
)

// Table lists and deletes conntrack entries.
type Table interface {
	Each(ctx context.Context, f kernel.Filter, fn func(kernel.Entry) error) error
	Delete(ctx context.Context, e kernel.Entry) error
}

// Options for New.
type Options struct {
	Table  Table
	Report func(error) // called when a scan failed and will be repeated; may be nil

	// Scanned is called after each scan with its duration, and how many flows of each
	// family it ended. It may be nil.
	Scanned func(took time.Duration, ended map[route.Family]int)
}

// Follower deletes flows that a change made stale. It is safe for concurrent use.
type Follower struct {
	opts Options
	wake chan struct{}

	mu      sync.Mutex
	index   *index
	pending work
	later   work // second scans
	stats   Stats
}

// New returns a Follower without any Service.
func New(opts Options) *Follower {
	return &Follower{
		opts:  opts,
		wake:  make(chan struct{}, 1),
		index: newIndex(), pending: work{}, later: work{},
	}
}

// Applied queues the flows that a change in the kernel made stale, and returns at once.
// Services touched by a change that failed must be in a later one.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue(f.index.apply(c))
	started, ended := handshakes(c)
	for _, k := range ended {
		delete(f.pending, k)
		delete(f.later, k)
	}
	f.queue(started)
}

// Repaired queues all flows: the rules in the kernel were wrong for a while, so that any
// flow may be stale.
func (f *Follower) Repaired(t *route.Table) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.index.everything()
	for _, s := range t.Services {
		for k := range balanced(s) {
			w[k] = need{all: true}
		}
	}
	f.queue(w)
}

// SetLocal sets the addresses of this host. NodePorts of every local address are
// served at these, except loopback addresses.
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
	default: // Run wakes anyway
	}
}

// Run scans for stale flows until ctx is done, and returns nil then.
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
		err := f.scan(ctx, w, ended)
		now := time.Now()
		if f.opts.Scanned != nil {
			f.opts.Scanned(now.Sub(started), ended)
		}
		if ctx.Err() != nil {
			return nil
		}
		pause := min(rest*now.Sub(started), maxRest)
		if err == nil {
			failed = 0
			f.scanAgain(w, now.Add(secondScan))
		} else {
			pause = min(minRetry<<min(failed, 10), maxRetry)
			failed++
			f.failed(w, err)
		}
		sleep(ctx, pause)
	}
	return nil
}

// take returns all work that is due, and the time until more is due; 0 if no work
// waits.
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

// scanAgain schedules a second scan after first ones.
func (f *Follower) scanAgain(w work, at time.Time) {
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

// failed keeps the work for the next attempt.
func (f *Follower) failed(w work, err error) {
	f.mu.Lock()
	f.stats.Failures++
	f.pending = f.pending.with(w)
	f.mu.Unlock()
	if f.opts.Report != nil {
		f.opts.Report(err)
	}
}

// scan does the work once, and counts the flows it ended. It goes on after a deletion
// that fails.
func (f *Follower) scan(ctx context.Context, w work, ended map[route.Family]int) error {
	f.mu.Lock()
	f.stats.Scans++
	f.mu.Unlock()
	var failures []error
	for _, filter := range w.listings() {
		err := f.opts.Table.Each(ctx, filter, func(e kernel.Entry) error {
			deleted, err := f.deleteStale(ctx, e, w)
			if deleted {
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

// deleteStale deletes a flow that is stale by the present state, which may be newer than
// the work of this scan.
func (f *Follower) deleteStale(ctx context.Context, e kernel.Entry, w work) (deleted bool, err error) {
	f.mu.Lock()
	stale := f.index.stale(e, w)
	f.mu.Unlock()
	if !stale {
		return false, nil
	}
	if err := f.opts.Table.Delete(ctx, e); err != nil {
		return false, err
	}
	f.mu.Lock()
	f.stats.Deleted++
	f.mu.Unlock()
	return true, nil
}

// idle waits for work, or for the next second scan.
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

// Stats count the work of a Follower since it was made.
type Stats struct {
	Scans    uint64
	Deleted  uint64 // flows that were stale
	Failures uint64 // scans that must be repeated
	Pending  int    // frontends that wait for their first scan
}

// Stats returns the counts so far.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Pending = len(f.pending)
	return s
}
