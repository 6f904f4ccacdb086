package watch

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// mostAnswered bounds the IDs of connections to a backend. Of more, a part is compared.
const mostAnswered = 1 << 16

// subject is a backend of a port whose connections are watched, as some failed or as it is on trial.
type subject struct {
	eject.Record

	open []conntrack.Entry // connections without an answer: those that failed, and those that began on trial

	answered answered
	listed   time.Time // the last listing; zero: none
	known    bool      // the last look would have listed a connection that succeeded after a failure
	idle     bool      // the last look saw no connection that waits
}

// follow adds a connection without an answer.
func (s *subject) follow(e conntrack.Entry) {
	if len(s.open) < mostOpen {
		s.open = append(s.open, e)
	}
}

// restart forgets what happened before a trial, but not which connections there are.
func (s *subject) restart() {
	s.Forget()
	s.open = nil
}

// answered is a set of connections, by ID. With a mask it has only the IDs without these bits.
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
	if a.ids[id] = struct{}{}; len(a.ids) <= mostAnswered {
		return
	}
	a.mask = a.mask<<2 | 3
	for id := range a.ids {
		if id&a.mask != 0 {
			delete(a.ids, id)
		}
	}
}

// has reports whether the set has an ID, or would not have it for its mask.
func (a *answered) has(id uint32) bool {
	_, has := a.ids[id]
	return has || id&a.mask != 0
}

// compare takes a listing of connections that were answered. One that the last listing did not have succeeded.
func (s *subject) compare(now answered, at time.Time) {
	first := s.listed.IsZero()
	s.known = !first || len(now.ids) == 0
	for id := range now.ids {
		if !first && !s.answered.has(id) {
			s.Succeed()
			s.open = nil
			break
		}
	}
	s.answered, s.listed = now, at
}

// asked returns the connections that were followed and are not unanswered any more.
func (p *Part) asked(seen map[uint32]*waiting) map[*subject][]conntrack.Entry {
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

// ask reads connections. One that was answered in the end succeeded.
func (p *Part) ask(ctx context.Context, s *subject, list []conntrack.Entry) {
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

// wanted are subjects by backend.
type wanted map[netip.AddrPort][]*subject

// wanted returns the subjects whose connections are to be listed, by backend.
func (p *Part) wanted(now time.Time) wanted {
	all := wanted{}
	for q := range p.active {
		full := q.Full()
		for b, s := range q.Standings {
			if s.Phase == eject.Ejected && !now.Before(s.Next) { // the trial begins
				p.subject(q, b)
			}
		}
		for b, s := range q.subjects {
			s.known, s.idle = false, len(s.open) == 0
			pause, at := relist, q.Standings[b]
			switch {
			case at.Phase == eject.Trial && !s.idle, at.Phase == eject.Ejected && now.Before(at.Next):
				continue // connections will tell, or nothing is to be known
			case at.Phase == eject.Trial, at.Phase == eject.Ejected:
				pause = trialPause
			case !full && s.Near(q.Limits):
				pause = 0
			}
			if now.Sub(s.listed) >= pause {
				all[b] = append(all[b], s)
			}
		}
	}
	return all
}

// list lists the answered connections to backends: each walk lists those to one, or to all of a port, or if there are
// many ports, all.
func (p *Part) list(ctx context.Context, wanted wanted, now time.Time) (r read, err error) {
	found := map[netip.AddrPort]*answered{}
	for b := range wanted {
		found[b] = &answered{}
	}
	for f := range wanted.filters() {
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
	for b, list := range wanted {
		for _, s := range list {
			s.compare(*found[b], now)
		}
	}
	return r, nil
}

// fewPorts is up to how many ports are listed one by one: each listing walks the whole table.
const fewPorts = 2

// filters returns the listings that have all connections to the backends.
func (w wanted) filters() map[conntrack.Filter]bool {
	all := map[conntrack.Filter]bool{}
	for b := range w {
		f := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.TCP, ReplySrc: b}
		if b.Addr().Is6() {
			f.Family = conntrack.IPv6
		}
		if len(w) > 1 {
			f.ReplySrc = netip.AddrPortFrom(netip.Addr{}, b.Port())
		}
		all[f] = true
	}
	if len(all) > fewPorts {
		return map[conntrack.Filter]bool{{Protocol: conntrack.TCP}: true}
	}
	return all
}
