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

	open []conntrack.Entry // failed connections without an answer

	answered answered
	listed   time.Time // the last listing; zero: none
	known    bool      // the last look would have listed a connection that succeeded after a failure
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

// asked returns the connections that failed and are not unanswered any more.
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
		for b, s := range q.subjects {
			s.known = false
			pause := relist
			switch trial := q.Standings[b].Phase == eject.Trial; {
			case trial:
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

// list lists the answered connections to backends: by port, or if there are many, all. It returns how many it has
// read.
func (p *Part) list(ctx context.Context, wanted wanted, now time.Time) (entries int, err error) {
	found := map[netip.AddrPort]*answered{}
	filters := map[conntrack.Filter]bool{}
	for b := range wanted {
		found[b] = &answered{}
		filters[filterOf(b, len(wanted))] = true
	}
	for f := range filters {
		err := p.opt.Table.Each(ctx, f, func(e conntrack.Entry) error {
			entries++
			if a := found[e.ReplySrc]; a != nil && e.Answered() {
				a.add(e.ID)
			}
			return nil
		})
		if err != nil {
			return entries, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for b, list := range wanted {
		for _, s := range list {
			s.compare(*found[b], now)
		}
	}
	return entries, nil
}

// fewBackends is up to how many backends are listed one by one: each listing walks the whole table.
const fewBackends = 2

func filterOf(b netip.AddrPort, n int) conntrack.Filter {
	f := conntrack.Filter{Family: conntrack.IPv4, Protocol: conntrack.TCP}
	if b.Addr().Is6() {
		f.Family = conntrack.IPv6
	}
	if n <= fewBackends {
		f.ReplySrc = b
	}
	return f
}
