package watch

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// maxAnswered bounds the IDs of connections to a backend. If there are more, a sample is compared.
const maxAnswered = 1 << 16

// subject is a backend of a port whose connections are watched, because some failed or because it is on trial.
type subject struct {
	eject.Record

	open []conntrack.Entry // connections without an answer that failed or began during a trial

	answered answered
	listed   time.Time // when answered was listed; zero: never
	observed bool      // the last poll would have listed a success
	idle     bool      // the last poll had no open connection
}

// follow adds a connection without an answer.
func (s *subject) follow(e conntrack.Entry) {
	if len(s.open) < maxOpen {
		s.open = append(s.open, e)
	}
}

// answered is a set of IDs of connections. It is a sample: it omits IDs with a bit of the mask.
type answered struct {
	ids  map[uint32]struct{}
	mask uint32
}

func (a *answered) add(id uint32) {
	if a.ids == nil {
		a.ids = map[uint32]struct{}{}
	}
	if id&a.mask != 0 {
		return
	}
	if a.ids[id] = struct{}{}; len(a.ids) <= maxAnswered {
		return
	}
	a.mask = a.mask<<2 | 3
	for id := range a.ids {
		if id&a.mask != 0 {
			delete(a.ids, id)
		}
	}
}

// has reports whether the set has an ID, or omits it because of the mask.
func (a *answered) has(id uint32) bool {
	_, has := a.ids[id]
	return has || id&a.mask != 0
}

// compare compares a listing of answered connections with the previous one. A new connection is a success.
func (s *subject) compare(now answered, at time.Time) {
	first := s.listed.IsZero()
	s.observed = !first || len(now.ids) == 0
	for id := range now.ids {
		if !first && !s.answered.has(id) {
			s.Succeed()
			s.open = nil
			break
		}
	}
	s.answered, s.listed = now, at
}

// takeGone removes and returns the followed connections that are no longer among the unanswered ones.
func (p *Part) takeGone(seen map[uint32]*waiting) map[*subject][]conntrack.Entry {
	all := map[*subject][]conntrack.Entry{}
	for q := range p.active {
		for _, s := range q.subjects {
			var open []conntrack.Entry
			for _, e := range s.open {
				if seen[e.ID] != nil {
					open = append(open, e)
				} else {
					all[s] = append(all[s], e)
				}
			}
			s.open = open
		}
	}
	return all
}

// check reads connections of a subject until it finds one that was answered, which is a success.
func (p *Part) check(ctx context.Context, s *subject, list []conntrack.Entry) {
	for _, e := range list {
		now, exists, err := p.opt.Table.Get(ctx, e)
		if err == nil && exists && now.Answered() {
			p.mu.Lock()
			s.Succeed()
			p.mu.Unlock()
			return
		}
	}
}

// byBackend are subjects by their backend.
type byBackend map[netip.AddrPort][]*subject

// due returns the subjects whose connections are to be listed now.
func (p *Part) due(now time.Time) byBackend {
	all := byBackend{}
	for q := range p.active {
		full := q.Full()
		for b, s := range q.States {
			if s.Phase == eject.Ejected && !now.Before(s.Next) { // the trial begins
				p.subject(q, b)
			}
		}
		for b, s := range q.subjects {
			s.observed, s.idle = false, len(s.open) == 0
			pause, at := relist, q.States[b]
			switch {
			case at.Phase == eject.Trial && !s.idle, at.Phase == eject.Ejected && now.Before(at.Next):
				continue // open connections decide, or nothing is decided before the trial
			case at.Phase == eject.Trial, at.Phase == eject.Ejected:
				pause = trialPause
			case !full && s.Reaches(q.Limits):
				pause = 0
			}
			if now.Sub(s.listed) >= pause {
				all[b] = append(all[b], s)
			}
		}
	}
	return all
}

// list lists the answered connections to the backends of subjects.
func (p *Part) list(ctx context.Context, due byBackend, now time.Time) (r read, err error) {
	found := map[netip.AddrPort]*answered{}
	for b := range due {
		found[b] = &answered{}
	}
	for f := range due.filters() {
		r.walks++
		err := p.opt.Table.Each(ctx, f, func(e conntrack.Entry) error {
			r.entries++
			if a := found[e.ReplySrc]; a != nil && e.Answered() {
				a.add(e.ID)
			}
			return nil
		})
		if err != nil {
			return r, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for b, list := range due {
		for _, s := range list {
			s.compare(*found[b], now)
		}
	}
	return r, nil
}

// maxFilters is the number of filters above which one listing of all TCP connections is cheaper: each walks the table.
const maxFilters = 2

// filters returns filters that together select all connections to the backends: one filter for a single backend,
// otherwise one for each family and port, or a single one for all TCP connections.
func (w byBackend) filters() map[conntrack.Filter]bool {
	all := map[conntrack.Filter]bool{}
	for b := range w {
		f := conntrack.Filter{Family: conntrack.FamilyOf(b.Addr()), Protocol: conntrack.TCP, ReplySrc: b}
		if len(w) > 1 {
			f.ReplySrc = netip.AddrPortFrom(netip.Addr{}, b.Port())
		}
		all[f] = true
	}
	if len(all) > maxFilters {
		return map[conntrack.Filter]bool{{Protocol: conntrack.TCP}: true}
	}
	return all
}
