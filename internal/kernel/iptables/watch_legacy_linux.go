package iptables

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// A legacy table tells nobody that it changed. The kernel shows cheaply how large
// it is, and expensively what it says, so the first is looked at often, and the
// second as rarely as its cost demands: soon if the first differs, or after a
// Restore of ours, to know what from then on must not change; else seldom, as a
// rule may take the place of another of its size.
const (
	thrift  = 1000             // times of what a look costs until the next without a cause: 0.1% of a CPU
	thrift2 = 20               // with a cause: 5%
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
	timer := time.NewTimer(t.poll())
	defer timer.Stop()
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			said = t.report(ended(ctx, l.round(ctx, tell)), said)
			timer.Reset(t.poll())
		}
	}
}

// report logs that the tables could not be looked at when that is new, and when it
// is over. It returns what it said last.
func (t *Tools) report(err error, said string) string {
	switch {
	case err == nil && said != "":
		t.opts.Log.Info("The tables of iptables can be looked at again")
	case err != nil && err.Error() != said:
		t.opts.Log.Warn("Cannot look for what others change in the tables of iptables, retrying", "error", err)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// ended leaves out an error that is the end of the context.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// cause is why a table is to be read.
type cause struct {
	table   Table
	there   bool
	foreign bool   // it looks different, and not by us
	number  uint64 // of the last Restore then
	quiet   bool   // no Restore was running
}

// round looks at all tables once.
func (l *look) round(ctx context.Context, tell func(Edit)) error {
	due, err := l.due(ctx, time.Now())
	if err != nil {
		return err
	}
	for _, c := range due {
		edits, err := l.compare(ctx, c)
		if err != nil {
			return err
		}
		if len(edits.what) > 0 {
			tell(Edit{What: edits.String()})
		}
	}
	return nil
}

// due lists the tables that it is time to read.
func (l *look) due(ctx context.Context, now time.Time) ([]cause, error) {
	l.mu.Lock() // also while the kernel is asked: what it says is compared with what was last known
	defer l.mu.Unlock()
	stamps, err := l.tools.kernel.Stamps(ctx)
	if err != nil {
		return nil, err
	}
	var all []cause
	for table, s := range l.seen {
		stamp := stamps[l.tools.id(table)]
		c := cause{table: table, there: stamp != xtables.Stamp{}, number: l.number, quiet: l.running == 0}
		c.foreign = s.edited || c.quiet && stamp != s.stamp
		wait := min(thrift*s.cost, longest)
		if c.foreign || c.quiet && len(s.mine) > 0 {
			wait = thrift2 * s.cost
		}
		if (c.there || c.foreign) && now.Sub(s.at) >= wait {
			s.edited = false
			all = append(all, c)
		}
	}
	return all, nil
}

// compare reads a table and returns what others did.
func (l *look) compare(ctx context.Context, c cause) (found, error) {
	took := stopwatch()
	var now xtables.Digest
	if c.there {
		var err error
		if now, err = l.tools.kernel.Digest(ctx, l.tools.id(c.table), l.seed, l.ours); err != nil {
			return found{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seen[c.table]
	var edits found
	for _, what := range differences(s.digest, now, func(chain string) bool { return s.mine[chain] > 0 }) {
		edits.add(what + where(c.table))
	}
	if c.foreign && len(edits.what) == 0 && len(s.mine) > 0 { // may be any of these, or nobody's business
		edits.add("chains just written" + where(c.table))
	}
	if c.quiet { // otherwise what is named may be yet to come
		maps.DeleteFunc(s.mine, func(_ string, number uint64) bool { return number <= c.number })
	}
	if c.quiet && c.number == l.number { // otherwise the end of a Restore says what it looks like
		s.stamp = now.Stamp
	}
	s.digest, s.at = now, time.Now()
	s.cost = took()
	return edits, nil
}

// stopwatch returns what tells how much time of a CPU has been used since, at
// most: on a busy machine much more goes by.
func stopwatch() func() time.Duration {
	began, used := time.Now(), cpuTime()
	return func() time.Duration { return min(time.Since(began), cpuTime()-used) }
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return math.MaxInt64 / 2 // not known
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// begin notes that input of ours is about to be carried out. Where the kernel does
// not answer everything looks edited, and is compared.
func (l *look) begin(ctx context.Context, f Family, named map[string][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stamps, _ := l.tools.kernel.Stamps(ctx)
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
func (l *look) end(ctx context.Context, f Family, named map[string][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stamps, _ := l.tools.kernel.Stamps(ctx)
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
