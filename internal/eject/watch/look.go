package watch

import (
	"context"
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

// Run looks until the context ends. It returns nil then, and also if the table cannot be read at all.
func (p *Part) Run(ctx context.Context) error {
	runtime.LockOSThread() // CPU is that of the thread
	defer runtime.UnlockOSThread()
	defer func() { _ = p.opt.Table.Close() }() // nothing is written
	due := time.NewTimer(period)
	defer due.Stop()
	var refusals <-chan error
	last, pace := "", newPacer()
	for {
		select {
		case <-ctx.Done():
			if refusals != nil {
				return <-refusals
			}
			return nil
		case <-p.wake:
			if refusals == nil && p.used() {
				refusals = p.subscribe(ctx)
			}
			p.settle(time.Now())
			continue
		case <-due.C:
		}
		began := p.opt.CPU()
		near, entries, err := p.look(ctx, time.Now())
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			p.opt.Failed(err)
		}
		pause := p.pause()
		if err != nil {
			pause, near = slowPeriod, 0
		}
		due.Reset(pace.pause(look{p.opt.CPU() - began, entries, pause, near}))
	}
}

// used reports whether a Service uses ejection.
func (p *Part) used() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.services) > 0
}

func (p *Part) pause() time.Duration {
	if p.used() {
		return period
	}
	return slowPeriod
}

// subscribe receives refusals until the context ends. The channel then has an item.
func (p *Part) subscribe(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := p.opt.Table.Refusals(ctx, func() {}, func(e conntrack.Entry) { p.refused(ctx, e, time.Now()) })
		if err != nil {
			p.opt.Failed(err)
		}
		done <- nil
	}()
	return done
}

// refused counts a refusal. It reads at most mostEvents a second: the kernel discards others.
func (p *Part) refused(ctx context.Context, e conntrack.Entry, now time.Time) {
	p.mu.Lock()
	if now.Sub(p.events.second) >= time.Second {
		p.events = events{second: now}
	}
	p.events.n++
	full := p.events.n >= mostEvents
	until := p.events.second.Add(time.Second)
	if p.known(e) {
		p.count(e, plane.Failed{Refused: 1})
		p.fail(e, now)
	}
	p.mu.Unlock()
	if full {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(until)):
		}
	}
}

// known reports whether an entry is a connection to a backend of a Service.
func (p *Part) known(e conntrack.Entry) bool { return e.Translated() || len(p.of(e)) > 0 }

func (p *Part) count(e conntrack.Entry, f plane.Failed) {
	at := plane.Target{Protocol: cluster.TCP, Backend: e.ReplySrc}
	sum, has := p.failed[at]
	if !has && len(p.failed) >= mostTargets {
		return
	}
	p.failed[at] = plane.Failed{Unanswered: sum.Unanswered + f.Unanswered, Refused: sum.Refused + f.Refused}
}

// of returns the ports with ejection to which a connection belongs: that of its frontend, or if it went to the backend
// directly, all that have the backend.
func (p *Part) of(e conntrack.Entry) []*port {
	if !e.Translated() {
		if p.opt.Direct && e.OrigDst == e.ReplySrc {
			return p.backends[e.ReplySrc]
		}
		return nil
	}
	key := route.Key{
		Family: route.FamilyOf(e.OrigDst.Addr()), Protocol: cluster.TCP, Port: e.OrigDst.Port(), Addr: e.OrigDst.Addr(),
	}
	q := p.fronts[key]
	if q == nil {
		key.Addr = netip.Addr{} // a node port
		q = p.fronts[key]
	}
	if slices.Contains(p.backends[e.ReplySrc], q) {
		return []*port{q}
	}
	return nil
}

// fail adds a failure to the evidence of ports with ejection.
func (p *Part) fail(e conntrack.Entry, now time.Time) {
	for _, q := range p.of(e) {
		s := p.subject(q, e.ReplySrc)
		s.Fail(e.OrigSrc.Addr(), now)
		if !e.Answered() && len(s.open) < mostOpen {
			s.open = append(s.open, e)
		}
	}
}

// subject returns the subject of a backend of a port, and creates it.
func (p *Part) subject(q *port, b netip.AddrPort) *subject {
	s := q.subjects[b]
	if s == nil {
		s = &subject{}
		q.subjects[b] = s
		p.active[q] = true
	}
	return s
}

// look lists unanswered connections, and decides. It returns the time until a decision may be possible, 0 if none is
// near, and how many entries it has read.
func (p *Part) look(ctx context.Context, now time.Time) (near time.Duration, entries int, err error) {
	seen, late, entries, err := p.unanswered(ctx, now)
	if err != nil {
		return 0, entries, err
	}
	p.mu.Lock()
	p.waiting = seen
	asked := p.asked(seen)
	p.mu.Unlock()
	for s, list := range asked {
		p.ask(ctx, s, list)
	}
	p.mu.Lock()
	for _, e := range late {
		p.count(e, plane.Failed{Unanswered: 1})
		p.fail(e, now)
	}
	near = p.near(seen, now)
	wanted := p.wanted(now)
	p.mu.Unlock()
	listed, err := p.list(ctx, wanted, now)
	if entries += listed; err != nil {
		return near, entries, err
	}
	if p.settle(now) {
		near = period
	}
	return near, entries, nil
}

// unanswered lists the connections without an answer, and returns those that became failures.
func (p *Part) unanswered(ctx context.Context, now time.Time) (
	seen map[uint32]*waiting, late []conntrack.Entry, entries int, err error,
) {
	seen = map[uint32]*waiting{}
	each := map[netip.AddrPort]int{}
	filter := conntrack.Filter{Protocol: conntrack.TCP, Unanswered: true}
	err = p.opt.Table.Each(ctx, filter, func(e conntrack.Entry) error {
		entries++
		if e.State != conntrack.SynSent || each[e.ReplySrc] >= mostPending || seen[e.ID] != nil {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.known(e) {
			return nil
		}
		each[e.ReplySrc]++
		w := p.waiting[e.ID]
		if w == nil {
			w = &waiting{backend: e.ReplySrc, first: now}
		}
		if !w.counted && now.Sub(w.first) >= overdue {
			w.counted, late = true, append(late, e)
		}
		seen[e.ID] = w
		return nil
	})
	return seen, late, entries, err
}

// near returns the time until the next look if something can be decided soon; otherwise 0. If several connections wait
// for one backend, what was answered is listed now, so that their failure decides at once.
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
			switch trial := q.Standings[b].Phase == eject.Trial; {
			case trial, n[b] >= int(q.Limits.Clients) && !q.Full():
				p.subject(q, b)
				soon(at.Add(overdue).Sub(now))
			}
		}
	}
	for q := range p.active {
		for _, s := range q.subjects {
			if s.Near(q.Limits) && !q.Full() {
				soon(period)
			}
		}
	}
	return next
}

// settle decides about all ports with evidence, and sets the shares of Services that changed. It reports whether a
// trial began.
func (p *Part) settle(now time.Time) (trial bool) {
	p.mu.Lock()
	var changes []Change
	changed := p.left
	p.left = map[cluster.Name]bool{}
	for q := range p.active {
		found, is := p.decide(q, now)
		for _, s := range q.Standings {
			trial = trial || s.Phase == eject.Trial && s.Since.Equal(now)
		}
		changes = append(changes, found...)
		if is {
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
	return trial
}

// decide updates the standings of a port. It reports whether one has changed, and returns the ejections.
func (p *Part) decide(q *port, now time.Time) (ejections []Change, changed bool) {
	evidence := map[netip.AddrPort]eject.Evidence{}
	for b, s := range q.subjects {
		evidence[b] = s.Take(s.known)
		s.known = false
	}
	next := q.Decide(evidence, now)
	for _, b := range q.Backends {
		before, after := q.Standings[b], next[b]
		if before == after {
			continue
		}
		changed = true
		if after.Phase == eject.Ejected {
			p.ejected++
			ejections = append(ejections, Change{q.id, b, after})
		}
		if after.Phase != eject.In {
			delete(q.subjects, b) // what follows is measured anew
		}
	}
	q.Standings = next
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
		for b, s := range q.Standings {
			if share := s.Share(); share.Part < cluster.Whole {
				shares[cluster.ShareKey{Port: q.id.Name, Backend: b}] = share
			}
		}
	}
	return shares
}
