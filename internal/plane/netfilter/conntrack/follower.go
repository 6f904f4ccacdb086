// Package conntrack deletes the conntrack entries of flows that changes of Services made stale.
//
// The kernel sends all packets of a UDP flow to the destination of the first one, even if that backend is gone, or if
// the Service had no backend then. TCP and SCTP peers notice; UDP senders that expect no answer never do.
//
// A TCP or SCTP connection may never begin: if its first packet came before there were rules for it, retransmissions
// keep the untranslated conntrack entry, and so do connections of other clients from the same port, for two minutes.
//
// The package deletes exactly the stale entries, at a cost that follows the change, and does not delay the change.
package conntrack

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

// secondScan is the time from a scan to a second one for the same flows: a packet that was passing
// the old rules may have made a flow after the first.
const secondScan = 2 * time.Second

// Table lists and deletes conntrack entries.
type Table interface {
	Each(ctx context.Context, f kernel.Filter, fn func(kernel.Entry) error) error
	Delete(ctx context.Context, e kernel.Entry) error
}

// Options for New.
type Options struct {
	Table  Table
	Report func(error) // called when scans begin to fail; they are repeated

	// Scanned is called after each scan with its duration, and how many flows of each family it ended.
	Scanned func(took time.Duration, ended map[route.Family]int)
}

// Follower deletes flows that a change made stale. It is safe for concurrent use.
type Follower struct {
	*work.Loop

	opts Options

	mu      sync.Mutex
	index   *index
	pending flows
	later   flows // second scans
}

// New returns a Follower without any Service.
func New(opts Options) *Follower {
	f := &Follower{opts: opts, index: newIndex(), pending: flows{}, later: flows{}}
	f.Loop = work.New(f.scanDue, opts.Report)
	return f
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

// Repaired queues all flows: the rules in the kernel were wrong for a while, so that any flow may be stale.
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

func (f *Follower) queue(w flows) {
	if len(w) == 0 {
		return
	}
	f.pending = f.pending.with(w)
	f.Wake()
}

// scanDue makes the scans that are due, and returns the time until the next second scan.
func (f *Follower) scanDue(ctx context.Context) (time.Duration, error) {
	w, wait := f.take(time.Now())
	if len(w) == 0 {
		return wait, nil
	}
	started := time.Now()
	ended, err := f.scan(ctx, w)
	f.opts.Scanned(time.Since(started), ended)
	if err == nil {
		f.scanAgain(w, time.Now().Add(secondScan))
		return min(cmp.Or(wait, secondScan), secondScan), nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = f.pending.with(w)
	return 0, err
}

// take returns all work that is due, and the time until more is due; 0 if no work waits.
func (f *Follower) take(now time.Time) (flows, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.pending
	f.pending = flows{}
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
func (f *Follower) scanAgain(w flows, at time.Time) {
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

// scan does the work once, and counts the flows it ended. It continues after a
// deletion that fails, and returns the first such error.
func (f *Follower) scan(ctx context.Context, w flows) (ended map[route.Family]int, failed error) {
	ended = map[route.Family]int{}
	for _, filter := range w.listings() {
		err := f.opts.Table.Each(ctx, filter, func(e kernel.Entry) error {
			deleted, err := f.deleteStale(ctx, e, w)
			if deleted {
				ended[route.FamilyOf(e.OrigDst.Addr())]++
			}
			if failed == nil {
				failed = err
			}
			return ctx.Err()
		})
		if err != nil {
			return ended, errors.Join(failed, err)
		}
	}
	return ended, failed
}

// deleteStale deletes a flow that is stale by the present state, which may be newer than the work of this scan.
func (f *Follower) deleteStale(ctx context.Context, e kernel.Entry, w flows) (deleted bool, err error) {
	f.mu.Lock()
	stale := f.index.stale(e, w)
	f.mu.Unlock()
	if !stale {
		return false, nil
	}
	err = f.opts.Table.Delete(ctx, e)
	return err == nil, err
}
