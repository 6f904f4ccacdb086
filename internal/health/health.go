// Package health decides whether the proxy does its work: whether changes reach the kernel in time.
//
// It answers two questions. Should the kubelet leave this process running (/livez)?
// Should load balancers send new connections to this node (/healthz)?
//
// The answers differ before the first write. A node without rules must get no traffic, so it is not healthy. But a
// process that waits for its API server is alive: a restart cannot help, and makes things worse where the API server is
// itself behind a Service, as all nodes would restart and list again and again. So the process is alive until every
// list is complete; from then on the first write has as much time as any other.
package health

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Verdict is the health of the proxy at one moment.
type Verdict struct {
	Now         time.Time
	LastUpdated time.Time     // of the last write that went well; zero: none did yet
	Started     bool          // everything was in the kernel once
	Live        bool          // no write is overdue
	Eligible    bool          // the own Node is known and is not being removed
	Contest     proxy.Contest // another program keeps changing the rules
	Waiting     string        // what the data plane waits for; empty: nothing
	Refusal     Refusal       // of the rules of Services by the kernel

	// Families are those that the Verdict applies to: one write is for all of them. Empty before the first write.
	Families []route.Family
}

// State is the overall condition of a proxy.
type State string

// The states.
const (
	Healthy  State = "healthy"
	Starting State = "starting" // no complete write yet
	Sick     State = "not healthy"
)

// Summary is what people and load balancers learn of a Verdict.
type Summary struct {
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"` // of a healthy proxy: what is wrong all the same
}

// String returns the state and the reason for it.
func (s Summary) String() string {
	if s.Reason == "" {
		return string(s.State)
	}
	return fmt.Sprintf("%s (%s)", s.State, s.Reason)
}

// Summary returns whether the node should be sent new connections, and why not.
func (v Verdict) Summary() Summary {
	why := v.trouble()
	switch {
	case !v.Started:
		return Summary{Starting, cmp.Or(why, "the first complete write to the kernel has not finished")}
	case why != "":
		return Summary{Sick, why}
	case !v.Eligible:
		return Summary{Sick, "the Node is leaving the cluster, or unknown"}
	}
	return Summary{Healthy, v.Refusal.String()}
}

// trouble returns why the rules in the kernel may not be as they should be; empty: they are, or there was no write yet.
// A restart of the process would help against an overdue write only.
func (v Verdict) trouble() string {
	switch {
	case v.Waiting != "":
		return v.Waiting
	case !v.Live:
		return "a write is overdue"
	case v.Contest.Active():
		return v.Contest.String()
	case v.Refusal.Grave():
		return v.Refusal.String()
	}
	return ""
}

// Programmed reports whether the rules are in the kernel as they should be.
func (v Verdict) Programmed() bool { return v.Started && v.Serving() }

// Serving reports whether the rules allow new connections to this node. Before the first write none is known wrong.
func (v Verdict) Serving() bool { return v.trouble() == "" }

// facts are the state from which verdict computes a Verdict.
type facts struct {
	now     time.Time
	listed  time.Time // when every list was complete; zero: not yet
	synced  time.Time // the last write that went well
	pending time.Time // since when the oldest change waits; zero: none does
	failing time.Time // since when writes fail; zero: the last went well
	timeout time.Duration
	node    *cluster.Node
	before  Before
}

// Before is the health of the run of this program that re-executed itself. Its
// rules are in the kernel, so its health holds until every list is complete.
type Before struct {
	LastUpdated time.Time // of its last write that went well; zero: none did, or there was no such run
	Eligible    bool
}

func (f facts) verdict(families []route.Family) Verdict {
	v := Verdict{
		Now: f.now, LastUpdated: f.synced,
		Eligible: f.node != nil && !f.node.Leaving,
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

// due returns since when a write is due; zero: none is. Failing writes count even without a change.
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

// Tracker tracks the health of the proxy. It is safe for concurrent use.
type Tracker struct {
	opt Options

	mu      sync.Mutex
	facts   facts // without those that Verdict reads at each call
	refusal Refusal
}

// Options for New.
type Options struct {
	Store      *cluster.Store
	Families   []route.Family // those served
	SyncPeriod time.Duration  // a write that waits for twice as long is overdue
	Before     Before

	// Contest returns the present Contest. Nil: there is never one.
	Contest func() proxy.Contest

	// Waiting returns what the data plane waits for; empty: nothing. Nil: always nothing.
	Waiting func() string
}

// New returns a Tracker for a proxy that starts now.
func New(o Options) *Tracker {
	return &Tracker{opt: o, facts: facts{timeout: 2 * o.SyncPeriod, before: o.Before}}
}

// Run notes when the store is complete. It returns when it is, or when the context ends.
func (t *Tracker) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-t.opt.Store.Ready():
		t.mu.Lock()
		defer t.mu.Unlock()
		t.facts.listed = time.Now()
	}
	return nil
}

// Observe records the outcome of an attempt to write.
func (t *Tracker) Observe(s proxy.Sync) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case s.Err == nil:
		t.facts.synced, t.facts.failing = time.Now(), time.Time{}
		t.refusal = Refusal{s.Refused, s.Known, s.Vital}
	case t.facts.failing.IsZero():
		t.facts.failing = s.Began
	}
}

// Verdict returns the present health of the proxy.
func (t *Tracker) Verdict() Verdict {
	pending, node := t.opt.Store.Backlog().Since, t.opt.Store.Node()
	var contest proxy.Contest
	if t.opt.Contest != nil {
		contest = t.opt.Contest() // which takes a lock of the loop
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.facts
	f.now, f.pending, f.node = time.Now(), pending, node
	v := f.verdict(t.opt.Families)
	v.Refusal, v.Contest = t.refusal, contest
	if t.opt.Waiting != nil {
		v.Waiting = t.opt.Waiting()
		v.Live = v.Live || v.Waiting != ""
	}
	return v
}

// Serving reports whether no write is overdue and no other program keeps changing the rules.
func (t *Tracker) Serving() bool { return t.Verdict().Serving() }

// Refusal is how many Services have rules that the kernel refuses.
type Refusal struct {
	Services int
	Of       int          // all Services
	Vital    cluster.Name // one of them without which a node does not work; zero: none of them is
}

// Grave reports whether new connections should go to another node: the kernel refuses more than half of the Services,
// the Service of the API server, or a Service of DNS.
func (r Refusal) Grave() bool { return 2*r.Services > r.Of || r.Vital != cluster.Name{} }

// String describes the refusal; empty: there is none.
func (r Refusal) String() string {
	switch {
	case r.Services == 0:
		return ""
	case r.Vital != cluster.Name{}:
		return fmt.Sprintf("the kernel refuses the rules of %d of %d Services, including Service %s", r.Services, r.Of,
			r.Vital)
	}
	return fmt.Sprintf("the kernel refuses the rules of %d of %d Services", r.Services, r.Of)
}
