// Package health decides whether the proxy does its work: whether what should
// be in the kernel gets there in time.
//
// Two questions are answered. Should this process be left alone (/livez,
// asked by the kubelet)? And should this node be sent new connections
// (/healthz, asked by load balancers)?
//
// They differ before everything was in the kernel once. A node without rules
// must get no traffic, so it is not healthy. But a process that still waits for
// its API server is alive: killing it cannot help, and where the API server is
// itself behind a Service it makes things worse, as all nodes would restart
// over and over, each time with everything to list. So until every list is
// complete nothing makes it dead; from then on the first write has as long as
// any other.
package health

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Verdict is what is known at one moment.
type Verdict struct {
	Now         time.Time
	LastUpdated time.Time // of the last write that went well; zero: none did yet
	Started     bool      // everything was in the kernel once
	Live        bool      // no write is overdue
	Eligible    bool      // the own Node is known and stays
	Contest     Contest   // another program keeps changing the rules

	// Families are those that share this fate: one write is for all of them.
	// Empty before there was anything to write.
	Families []route.Family
}

// Programmed reports whether the rules are in the kernel as they should be.
// While another program keeps removing them they are not, however soon they are
// put back; restarting the process would not help, so it is live.
func (v Verdict) Programmed() bool { return v.Started && v.Live && !v.Contest.Active() }

// Serving reports whether this node may be sent new connections as far as its
// rules are concerned. Before the first write no rules are known to be wrong.
func (v Verdict) Serving() bool { return v.Live && !v.Contest.Active() }

// Ready reports whether the node should be sent new connections.
func (v Verdict) Ready() bool { return v.Programmed() && v.Eligible }

// facts are all that a Verdict follows from.
type facts struct {
	now     time.Time
	listed  time.Time // when there was something complete to write; zero: not yet
	synced  time.Time // the last write that went well
	pending time.Time // since when the oldest change waits; zero: none does
	failing time.Time // since when writes fail; zero: the last went well
	timeout time.Duration
	node    *cluster.Node
	contest Contest
	before  Before
}

// Before is the health of the run of this program that executed itself anew. Its
// rules are in the kernel, so its health holds until every list is complete.
type Before struct {
	LastUpdated time.Time // of its last write that went well; zero: none did, or there was no such run
	Eligible    bool
}

func (f facts) verdict(families []route.Family) Verdict {
	v := Verdict{
		Now: f.now, LastUpdated: f.synced,
		Eligible: f.node != nil && !f.node.Leaving,
		Contest:  f.contest,
	}
	if f.synced.IsZero() {
		v.LastUpdated = f.before.LastUpdated
	}
	if f.listed.IsZero() && f.node == nil {
		v.Eligible = f.before.Eligible
	}
	v.Started = !v.LastUpdated.IsZero()
	since := f.due()
	v.Live = since.IsZero() || f.now.Sub(since) < f.timeout
	if v.Started || !f.listed.IsZero() {
		v.Families = families
	}
	return v
}

// due returns since when a write is due; zero: none is. Writes that fail count
// also if nothing changed: another program may have edited what is ours.
func (f facts) due() time.Time {
	switch {
	case f.listed.IsZero():
		return time.Time{}
	case f.synced.IsZero():
		return f.listed
	case f.pending.IsZero() || !f.failing.IsZero() && f.failing.Before(f.pending):
		return f.failing
	}
	return f.pending
}

// Store is what a Tracker asks of a cluster.Store.
type Store interface {
	Ready() <-chan struct{}  // closed when every list is complete
	Backlog() cluster.Window // what is not in the kernel yet
	Node() *cluster.Node     // the own Node; nil: unknown
}

// Tracker follows the health of the proxy. Its methods may be called from
// several goroutines.
type Tracker struct {
	store    Store
	families []route.Family
	timeout  time.Duration
	before   Before

	mu                              sync.Mutex
	listedAt, syncedAt, failedSince time.Time
	contest                         contest
}

// Options for New.
type Options struct {
	Store      Store
	Families   []route.Family // those served
	SyncPeriod time.Duration  // a write that waits for twice as long is overdue
	Before     Before
}

// New returns a Tracker of a proxy that just started.
func New(o Options) *Tracker {
	return &Tracker{store: o.Store, families: o.Families, timeout: 2 * o.SyncPeriod, before: o.Before}
}

// Run notes when the store is complete. It returns when it is, or when the
// context ends.
func (t *Tracker) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-t.store.Ready():
		t.mu.Lock()
		defer t.mu.Unlock()
		t.listedAt = time.Now()
	}
	return nil
}

// Observe takes the outcome of an attempt to write.
func (t *Tracker) Observe(s proxy.Sync) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.contest.observe(s, time.Now())
	switch {
	case s.Err == nil:
		t.syncedAt, t.failedSince = time.Now(), time.Time{}
	case t.failedSince.IsZero():
		t.failedSince = s.Began
	}
}

// Edited takes an edit by another program: the program's name, if it is known, and
// when it was made at the earliest; zero: now.
func (t *Tracker) Edited(what, by string, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if since.IsZero() {
		since = now
	}
	t.contest.edited(what, by, since, now)
}

// Contest says whether another program keeps changing the rules.
func (t *Tracker) Contest() Contest {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contest.at(time.Now())
}

// Verdict says how the proxy is now.
func (t *Tracker) Verdict() Verdict {
	pending, node := t.store.Backlog().Since, t.store.Node()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	return facts{
		now: now, contest: t.contest.at(now), listed: t.listedAt, synced: t.syncedAt, pending: pending,
		failing: t.failedSince, timeout: t.timeout, node: node, before: t.before,
	}.verdict(t.families)
}

// Serving reports whether no write is overdue and no other program keeps changing
// the rules.
func (t *Tracker) Serving() bool { return t.Verdict().Serving() }
