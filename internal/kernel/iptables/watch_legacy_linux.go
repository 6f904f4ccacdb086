package iptables

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// A legacy table tells nobody that it changed. The kernel shows cheaply how large
// it is, and expensively what it says, so the first is looked at often, and the
// second as rarely as its cost demands: soon if the first differs, or after a
// Restore of ours, to know what from then on must not change; else seldom, as a
// rule may take the place of another of its size.
const (
	thrift  = 1000             // times of what a look costs until the next without a cause: 0.1% of a CPU
	thrift2 = 50               // with a cause
	longest = 10 * time.Minute // until the next without a cause
)

// look watches legacy tables.
type look struct {
	tools *Tools
	ours  func(chain string) bool
	seed  maphash.Seed

	mu      sync.Mutex
	running int    // Restores
	number  uint64 // of the last of them
	seen    map[Table]*sight
}

// sight is what was last seen of a table.
type sight struct {
	stamp  xtables.Stamp
	digest xtables.Digest
	edited bool              // somebody else changed it before a Restore of ours
	mine   map[string]uint64 // chains that input of ours named since, and which Restore did last
	at     time.Time
	cost   time.Duration
}

func (t *Tools) look(ctx context.Context, ours func(string) bool, subscribed func(), tell func(Edit)) error {
	l := &look{tools: t, ours: ours, seed: maphash.MakeSeed(), seen: map[Table]*sight{}}
	for _, f := range []Family{IPv4, IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			l.seen[Table{f, name}] = &sight{mine: map[string]uint64{}}
		}
	}
	t.own.join(l)
	defer t.own.part(l)
	if err := l.round(ctx, func(Edit) {}); err != nil {
		return ended(ctx, err)
	}
	subscribed()
	ticker := time.NewTicker(t.opts.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := l.round(ctx, tell); err != nil {
				return ended(ctx, err)
			}
		}
	}
}

// ended leaves out an error that is the end of the context.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// round looks at all tables once.
func (l *look) round(ctx context.Context, tell func(Edit)) error {
	stamps, err := l.tools.kernel.Stamps(ctx)
	if err != nil {
		return err
	}
	for table, s := range l.seen {
		stamp := stamps[l.tools.id(table)]
		if !l.due(s, stamp, time.Now()) {
			continue
		}
		if err := l.compare(ctx, table, stamp, tell); err != nil {
			return err
		}
	}
	return nil
}

// due reports whether it is time to read a table.
func (l *look) due(s *sight, stamp xtables.Stamp, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := now.Sub(s.at)
	if l.running == 0 && (s.edited || stamp != s.stamp || len(s.mine) > 0) {
		return since >= thrift2*s.cost
	}
	return stamp != xtables.Stamp{} && since >= min(thrift*s.cost, longest)
}

// compare reads a table and tells of what others did.
func (l *look) compare(ctx context.Context, table Table, stamp xtables.Stamp, tell func(Edit)) error {
	l.mu.Lock()
	s := l.seen[table]
	foreign := s.edited || l.running == 0 && stamp != s.stamp
	done := l.number
	if l.running > 0 { // that one may be yet to come
		done = 0
	}
	s.edited = false
	l.mu.Unlock()

	started := time.Now()
	var now xtables.Digest
	if (stamp != xtables.Stamp{}) {
		var err error
		if now, err = l.tools.kernel.Digest(ctx, l.tools.id(table), l.seed, l.ours); err != nil {
			return err
		}
	}
	l.mu.Lock()
	edits := differences(s.digest, now, func(chain string) bool { return s.mine[chain] > 0 })
	if foreign && len(edits) == 0 && len(s.mine) > 0 { // may be any of these, or nobody's business
		edits = append(edits, "chains just written")
	}
	maps.DeleteFunc(s.mine, func(_ string, number uint64) bool { return number <= done })
	s.digest, s.stamp, s.at = now, now.Stamp, time.Now()
	s.cost = s.at.Sub(started)
	l.mu.Unlock()
	if len(edits) == 0 {
		return nil
	}
	var all found
	for _, what := range edits {
		all.add(what + where(table))
	}
	tell(Edit{What: all.String()})
	return nil
}

// begin notes that input of ours is about to be carried out.
func (l *look) begin(f Family, named map[string][]string, stamps map[xtables.TableID]xtables.Stamp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	for name, chains := range named {
		s := l.seen[Table{f, name}]
		if s == nil {
			continue
		}
		if l.running == 0 && stamps[l.tools.id(Table{f, name})] != s.stamp {
			s.edited = true
		}
		for _, chain := range chains {
			s.mine[chain] = l.number
		}
	}
	l.running++
}

// end notes that it was, and what the tables look like since.
func (l *look) end(f Family, named map[string][]string, stamps map[xtables.TableID]xtables.Stamp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	for name := range named {
		if s := l.seen[Table{f, name}]; s != nil {
			s.stamp = stamps[l.tools.id(Table{f, name})]
		}
	}
}

func (o *own) join(l *look) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looks == nil {
		o.looks = map[*look]bool{}
	}
	o.looks[l] = true
}

func (o *own) part(l *look) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.looks, l)
}
