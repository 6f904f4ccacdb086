// Package watch detects failed connections in conntrack, and sets the shares of their backends. Package eject decides.
package watch

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	period     = 400 * time.Millisecond  // between polls while a Service uses ejection
	slowPeriod = 5 * time.Second         // between polls while no Service uses ejection
	overdue    = 1200 * time.Millisecond // age at which an unanswered SYN is a failure; clients retransmit at 1 s
	trialPause = time.Second             // between listings of the connections to a backend on trial
	relist     = 5 * time.Second         // between listings of the connections to a backend below the limits

	maxPending = 4096    // unanswered connections to one backend that are followed
	maxOpen    = 64      // failed connections to one backend that are read again
	maxTargets = 1 << 16 // backends whose failures are counted
)

// Table reads conntrack. conntrack.Table implements it.
type Table interface {
	Each(ctx context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error
	Get(ctx context.Context, e conntrack.Entry) (conntrack.Entry, bool, error)
	SubscribeRefused(ctx context.Context) (func() ([]conntrack.Entry, error), error)
}

// Options for New.
type Options struct {
	Table  Table
	Shares func(cluster.Name, cluster.Shares) // cluster.Store.SetShares
	Direct bool                               // clients may connect to backends without DNAT
	Before Saved                              // state of an earlier run
	CPU    func() time.Duration               // CPU time of the calling thread, which determines the pauses

	Changed func(Change) // called for each backend that is ejected
	Save    func(Saved)  // called after each change of a state
	Failed  func(error)  // called when the table cannot be read, unless the error is the same as before
}

// Change is a backend that was ejected.
type Change struct {
	ID      route.PortID
	Backend netip.AddrPort
	State   eject.State
}

// Saved is the state that outlives the process.
type Saved []SavedBackend

// SavedBackend is a backend that was ejected recently.
type SavedBackend struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port"`
	Backend   netip.AddrPort `json:"backend"`
	eject.State
}

// Part polls conntrack and applies ejections. Its methods are safe for concurrent use.
type Part struct {
	opt  Options
	wake chan struct{}

	mu       sync.Mutex
	services map[cluster.Name][]*port   // ports with ejection
	fronts   map[route.Key]*port        // the same ports by frontend
	backends map[netip.AddrPort][]*port // the same ports by backend
	active   map[*port]bool             // ports with subjects or states
	stale    map[cluster.Name]bool      // Services whose shares are to be set again
	restored map[cluster.Name]Saved     // nil after the first change
	waiting  map[uint32]*waiting        // unanswered connections by ID
	failed   map[plane.Target]plane.Failed
	ejected  uint64 // ejections so far

	refusals func() ([]conntrack.Entry, error) // used by Run only; nil before the subscription
}

// port is a Service port with ejection.
type port struct {
	id route.PortID
	eject.Port

	fronts   []route.Key
	subjects map[netip.AddrPort]*subject
}

// waiting is a connection without an answer.
type waiting struct {
	backend netip.AddrPort
	first   time.Time // when it was first listed
	counted bool      // as a failure
}

// New returns a Part, and sets the shares that follow from the earlier run.
func New(opt Options) *Part {
	p := &Part{
		opt: opt, wake: make(chan struct{}, 1),
		services: map[cluster.Name][]*port{}, fronts: map[route.Key]*port{}, backends: map[netip.AddrPort][]*port{},
		active: map[*port]bool{}, stale: map[cluster.Name]bool{}, restored: map[cluster.Name]Saved{},
		waiting: map[uint32]*waiting{}, failed: map[plane.Target]plane.Failed{},
	}
	for _, s := range opt.Before {
		name := cluster.Name{Namespace: s.Namespace, Name: s.Service}
		p.restored[name] = append(p.restored[name], s)
	}
	for name, list := range p.restored {
		shares := cluster.Shares{}
		for _, s := range list {
			if share := s.Share(); share.Part < cluster.Whole {
				shares[cluster.ShareKey{Port: s.Port, Backend: s.Backend}] = share
			}
		}
		opt.Shares(name, shares)
	}
	return p
}

// Applied implements proxy.Follower.
func (p *Part) Applied(change route.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range change.Touched {
		p.replace(t.Name, t.New)
	}
	for name := range p.restored {
		p.stale[name] = true // some backends may be gone
	}
	p.restored = nil
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// replace replaces the ports of a Service, or deletes them if svc is nil. Ports that remain keep their states and
// evidence.
func (p *Part) replace(name cluster.Name, svc *route.Service) {
	before := map[route.PortID]*port{}
	for _, q := range p.services[name] {
		before[q.id] = q
		if len(q.States) > 0 {
			p.stale[name] = true
		}
		p.remove(q)
	}
	delete(p.services, name)
	if svc != nil {
		for i := range svc.Ports {
			if rp := &svc.Ports[i]; rp.Ejection.On() {
				p.add(before[rp.ID(name)], rp, name)
			}
		}
	}
}

// remove removes a port from the indexes.
func (p *Part) remove(q *port) {
	for _, k := range q.fronts {
		if p.fronts[k] == q {
			delete(p.fronts, k)
		}
	}
	for _, b := range q.Backends {
		p.backends[b] = slices.DeleteFunc(p.backends[b], func(o *port) bool { return o == q })
		if len(p.backends[b]) == 0 {
			delete(p.backends, b)
		}
	}
	delete(p.active, q)
}

// add adds a port, with the states and evidence of before, if it is not nil.
func (p *Part) add(before *port, rp *route.Port, name cluster.Name) {
	q := &port{id: rp.ID(name), subjects: map[netip.AddrPort]*subject{}}
	q.Limits, q.States = rp.Ejection, map[netip.AddrPort]eject.State{}
	q.Backends = slices.Concat(rp.Cluster, rp.Local, rp.Ejected)
	slices.SortFunc(q.Backends, netip.AddrPort.Compare)
	q.Backends = slices.Compact(q.Backends)
	for i := range rp.Frontends {
		q.fronts = append(q.fronts, rp.Key(&rp.Frontends[i]))
		p.fronts[q.fronts[i]] = q
	}
	for _, s := range p.restored[name] {
		if s.Port == q.id.Name && slices.Contains(q.Backends, s.Backend) {
			q.States[s.Backend] = s.State
		}
	}
	for _, b := range q.Backends {
		p.backends[b] = append(p.backends[b], q)
		if before == nil {
			continue
		}
		if s, has := before.States[b]; has {
			q.States[b] = s
		}
		if s := before.subjects[b]; s != nil {
			q.subjects[b] = s
		}
	}
	p.services[name] = append(p.services[name], q)
	if len(q.States)+len(q.subjects) > 0 {
		p.active[q] = true
	}
}

// Failed returns the failed connections to each backend since the start.
func (p *Part) Failed() map[plane.Target]plane.Failed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.failed)
}

// Counts are values of metrics.
type Counts struct {
	Ejections uint64 // since the start
	Ejected   int    // backends that are ejected now, including those on trial
}

// Counts returns the current values.
func (p *Part) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Counts{Ejections: p.ejected}
	for q := range p.active {
		for _, s := range q.States {
			if s.Out() {
				c.Ejected++
			}
		}
	}
	return c
}

// Saved returns the state for the next run.
func (p *Part) Saved() Saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all Saved
	for q := range p.active {
		for b, s := range q.States {
			all = append(all, SavedBackend{q.id.Service.Namespace, q.id.Service.Name, q.id.Name, b, s})
		}
	}
	return all
}

// Valid returns the backends whose state is plausible at this time. The clock may have jumped, and the file may have
// been edited.
func (s Saved) Valid(now time.Time) (valid Saved) {
	for _, b := range s {
		if b.Backend.IsValid() && b.State.Valid(now) {
			valid = append(valid, b)
		}
	}
	return valid
}
