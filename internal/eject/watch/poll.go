package watch

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Run polls the table until the context ends. It returns nil, even if the table cannot be read.
func (p *Part) Run(ctx context.Context) error {
	runtime.LockOSThread() // Options.CPU measures the thread
	defer runtime.UnlockOSThread()
	due, windowEnd := time.NewTimer(period), time.NewTimer(time.Hour)
	defer due.Stop()
	defer windowEnd.Stop()
	last, pace := "", &pacer{left: credit}
	for {
		polls := false
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-windowEnd.C:
		case <-due.C:
			polls = true
		}
		now := time.Now()
		if err := p.readRefusals(ctx, now); err != nil && ctx.Err() == nil {
			p.opt.Failed(err)
		}
		if polls {
			began := p.opt.CPU()
			near, read, err := p.poll(ctx, now)
			if err != nil && ctx.Err() == nil && err.Error() != last {
				last = err.Error()
				p.opt.Failed(err)
			}
			pause := slowPeriod
			switch {
			case err != nil:
				near = 0
			case p.used():
				pause = period
			}
			due.Reset(pace.pause(poll{p.opt.CPU() - began, read, pause, near}))
		} else {
			p.settle(now)
		}
		windowEnd.Reset(p.window(time.Now()))
	}
}

// used reports whether a Service uses ejection.
func (p *Part) used() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.services) > 0
}

// readRefusals counts the connections that were refused since the last call. It subscribes once a Service uses
// ejection, and reads nothing more after an error.
func (p *Part) readRefusals(ctx context.Context, now time.Time) (err error) {
	if p.refusals == nil && p.used() {
		p.refusals, err = p.opt.Table.SubscribeRefused(ctx)
	}
	var refused []conntrack.Entry
	if err == nil && p.refusals != nil {
		refused, err = p.refusals()
	}
	if err != nil && !errors.Is(err, conntrack.ErrLost) {
		p.refusals = func() ([]conntrack.Entry, error) { return nil, nil }
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range refused {
		if p.counts(e) {
			p.count(e, plane.Failed{Refused: 1})
			p.fail(e, now)
		}
	}
	return nil
}

// counts reports whether an entry is a connection to a backend of a Service.
func (p *Part) counts(e conntrack.Entry) bool { return e.Translated() || len(p.portsOf(e)) > 0 }

func (p *Part) count(e conntrack.Entry, f plane.Failed) {
	at := plane.Target{Protocol: cluster.TCP, Backend: e.ReplySrc}
	sum, has := p.failed[at]
	if !has && len(p.failed) >= maxTargets {
		return
	}
	p.failed[at] = plane.Failed{Unanswered: sum.Unanswered + f.Unanswered, Refused: sum.Refused + f.Refused}
}

// portsOf returns the ports with ejection to which a connection belongs: the port of its frontend, or for a connection
// without translation, all ports that have the backend.
func (p *Part) portsOf(e conntrack.Entry) []*port {
	if !e.Translated() {
		if p.opt.Direct && e.OrigDst == e.ReplySrc {
			return p.backends[e.ReplySrc]
		}
		return nil
	}
	q, _ := route.Find(p.fronts, cluster.TCP, e.OrigDst)
	if slices.Contains(p.backends[e.ReplySrc], q) {
		return []*port{q}
	}
	return nil
}

// fail adds a failure to the evidence of ports with ejection.
func (p *Part) fail(e conntrack.Entry, now time.Time) {
	for _, q := range p.portsOf(e) {
		s := p.subject(q, e.ReplySrc)
		s.Fail(e.OrigSrc.Addr(), now)
		if !e.Answered() {
			s.follow(e)
		}
	}
}

// subject returns the subject of a backend of a port, and creates it if needed.
func (p *Part) subject(q *port, b netip.AddrPort) *subject {
	s := q.subjects[b]
	if s == nil {
		s = &subject{}
		q.subjects[b] = s
		p.active[q] = true
	}
	return s
}

// poll lists unanswered connections, and decides. It returns the time until the next decision (0 if none is near) and
// the amount that it read.
func (p *Part) poll(ctx context.Context, now time.Time) (near time.Duration, r read, err error) {
	list, err := p.unanswered(ctx, now)
	r = read{walks: 1, entries: list.entries}
	if err != nil {
		return 0, r, err
	}
	p.mu.Lock()
	p.waiting = list.seen
	gone := p.takeGone(list.seen)
	for _, e := range list.begun {
		p.followTrial(e)
	}
	p.mu.Unlock()
	for s, list := range gone {
		p.check(ctx, s, list)
	}
	p.mu.Lock()
	for _, e := range list.late {
		p.count(e, plane.Failed{Unanswered: 1})
		p.fail(e, now)
	}
	near = p.near(list.seen, now)
	due := p.due(now)
	p.mu.Unlock()
	answered, err := p.list(ctx, due, now)
	r.walks, r.entries = r.walks+answered.walks, r.entries+answered.entries
	if err != nil {
		return near, r, err
	}
	p.settle(now)
	return near, r, nil
}

// unanswered is a listing of the connections without an answer.
type unanswered struct {
	seen    map[uint32]*waiting // by ID
	late    []conntrack.Entry   // connections that have just become overdue
	begun   []conntrack.Entry   // connections that the previous listing did not have
	entries int                 // number of entries that were read
}

// unanswered lists the connections without an answer.
func (p *Part) unanswered(ctx context.Context, now time.Time) (u unanswered, err error) {
	u.seen = map[uint32]*waiting{}
	each := map[netip.AddrPort]int{}
	filter := conntrack.Filter{Protocol: conntrack.TCP, Unanswered: true}
	err = p.opt.Table.Each(ctx, filter, func(e conntrack.Entry) error {
		u.entries++
		if e.State != conntrack.SynSent || each[e.ReplySrc] >= maxPending || u.seen[e.ID] != nil {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.counts(e) {
			return nil
		}
		each[e.ReplySrc]++
		w := p.waiting[e.ID]
		if w == nil {
			w = &waiting{backend: e.ReplySrc, first: now}
			u.begun = append(u.begun, e)
		}
		if !w.counted && now.Sub(w.first) >= overdue {
			w.counted, u.late = true, append(u.late, e)
		}
		u.seen[e.ID] = w
		return nil
	})
	return u, err
}

// followTrial follows a new connection if its backend is on trial.
func (p *Part) followTrial(e conntrack.Entry) {
	for _, q := range p.portsOf(e) {
		if q.States[e.ReplySrc].Phase == eject.Trial {
			p.subject(q, e.ReplySrc).follow(e)
		}
	}
}

// near returns the time until the next poll if a decision is possible soon; otherwise 0. If enough connections wait for
// one backend, it creates a subject, so that this poll lists the answered connections and the next one can decide.
func (p *Part) near(seen map[uint32]*waiting, now time.Time) (next time.Duration) {
	first, n := map[netip.AddrPort]time.Time{}, map[netip.AddrPort]int{}
	for _, w := range seen {
		if w.counted || len(p.backends[w.backend]) == 0 {
			continue
		}
		if n[w.backend]++; n[w.backend] == 1 || w.first.Before(first[w.backend]) {
			first[w.backend] = w.first
		}
	}
	soon := func(d time.Duration) {
		if next == 0 || d < next {
			next = max(period/4, d)
		}
	}
	for b, at := range first {
		for _, q := range p.backends[b] {
			if n[b] >= int(q.Limits.Clients) && !q.Full() {
				p.subject(q, b)
				soon(at.Add(overdue).Sub(now))
			}
		}
	}
	for q := range p.active {
		for _, s := range q.subjects {
			if s.Reaches(q.Limits) && !q.Full() {
				soon(period)
			}
		}
	}
	return next
}

// settle decides about all active ports, and sets the shares of the Services that changed.
func (p *Part) settle(now time.Time) {
	p.mu.Lock()
	var changes []Change
	changed := p.stale
	p.stale = map[cluster.Name]bool{}
	for q := range p.active {
		ejections, any := p.decide(q, now)
		changes = append(changes, ejections...)
		if any {
			changed[q.id.Service] = true
		}
	}
	shares := map[cluster.Name]cluster.Shares{}
	for name := range changed {
		shares[name] = p.sharesOf(name)
	}
	p.mu.Unlock()
	for name, s := range shares {
		p.opt.Shares(name, s)
	}
	for _, c := range changes {
		p.opt.Changed(c)
	}
	if len(shares) > 0 {
		p.opt.Save(p.Saved())
	}
}

// window returns the time until the first window of a trial ends; an hour if no window is open.
func (p *Part) window(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := time.Hour
	for q := range p.active {
		for _, s := range q.States {
			if s.Open() {
				first = min(first, s.Next.Sub(now))
			}
		}
	}
	return first
}

// decide updates the states of a port. It returns the ejections, and whether any state changed.
func (p *Part) decide(q *port, now time.Time) (ejections []Change, changed bool) {
	evidence := map[netip.AddrPort]eject.Evidence{}
	for b, s := range q.subjects {
		e := s.Take(s.observed)
		e.Idle = s.idle
		evidence[b], s.observed, s.idle = e, false, false
	}
	next := q.Decide(evidence, now)
	for _, b := range q.Backends {
		before, after := q.States[b], next[b]
		if before == after {
			continue
		}
		changed = true
		if after.Phase == eject.Ejected {
			p.ejected++
			ejections = append(ejections, Change{q.id, b, after})
		}
		switch {
		case after.Phase == before.Phase, after.Phase == eject.In:
		case after.Phase == eject.Trial && q.subjects[b] != nil:
			q.subjects[b].Record, q.subjects[b].open = eject.Record{}, nil // it keeps the listing of answered connections
		default:
			delete(q.subjects, b) // the next phase starts without evidence
		}
	}
	q.States = next
	for b, s := range next {
		if s.Phase == eject.Trial {
			p.subject(q, b)
		}
	}
	for b, s := range q.subjects {
		if s.Expired(now) && now.Sub(s.listed) >= relist && next[b].Phase != eject.Trial {
			delete(q.subjects, b)
		}
	}
	if len(q.subjects)+len(next) == 0 {
		delete(p.active, q)
	}
	return ejections, changed
}

// sharesOf returns the shares of the backends of a Service.
func (p *Part) sharesOf(name cluster.Name) cluster.Shares {
	shares := cluster.Shares{}
	for _, q := range p.services[name] {
		for b, s := range q.States {
			if share := s.Share(); share.Part < cluster.Whole {
				shares[cluster.ShareKey{Port: q.id.Name, Backend: b}] = share
			}
		}
	}
	return shares
}
