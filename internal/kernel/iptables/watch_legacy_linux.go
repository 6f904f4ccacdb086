package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A legacy table tells nobody that it changed. The kernel shows cheaply how large
// it is, and expensively what it says, so the first is looked at often, and the
// second as rarely as its cost demands: soon if the first differs, or after a
// Restore of ours, to know what from then on must not change; else seldom, as a
// rule may take the place of another of its size.
//
// What a table says right after a Restore is no proof of what the Restore wrote:
// another program may have changed it in between. So each Restore is followed by
// one Edit that is only possible, and the reader of edits compares the table with
// what it should hold.
const (
	thrift  = 1000             // times of what a look costs until the next without a cause: 0.1% of a CPU
	thrift2 = 20               // with a cause: 5%
	longest = 10 * time.Minute // until the next without a cause
)

// tableReader is what the watch needs of Kernel. A table that Kernel cannot decode,
// the programs may still be able to read and write.
type tableReader interface {
	Stamps(ctx context.Context) (map[TableID]Stamp, error)
	Digest(ctx context.Context, id TableID, seed maphash.Seed, ours func(chain string) bool) (Digest, error)
}

// look watches legacy tables.
type look struct {
	tools *Tools
	ours  func(chain string) bool
	seed  maphash.Seed

	mu      sync.Mutex
	running int    // Restores
	number  uint64 // of the last of them
	seen    map[Table]*sight
	rounded time.Time // when the last round began
}

// sight is what was last seen of a table.
type sight struct {
	known  bool // digest was read once
	stamp  Stamp
	digest Digest
	edited bool              // somebody else changed it before a Restore of ours
	mine   map[string]uint64 // chains that input of ours named since, and which Restore did last
	at     time.Time
	cost   time.Duration
}

// cause is why a table is to be read.
type cause struct {
	table   Table
	there   bool
	foreign bool   // it looks different, and not by us
	number  uint64 // of the last Restore then
	quiet   bool   // no Restore was running
}

// round looks at all tables once and reports whether another program was seen to
// change one. A table that cannot be read does not keep it from the others.
func (l *look) round(ctx context.Context, tell func(Edit)) (changed bool, err error) {
	now := time.Now()
	due, err := l.due(ctx, now)
	if err != nil {
		return false, err
	}
	since := l.rounded
	l.rounded = now
	var errs []error
	for _, c := range due {
		edit, err := l.compare(ctx, c)
		if err != nil {
			l.postpone(c)
			errs = append(errs, fmt.Errorf("table %s: %w", l.tools.id(c.table), err))
		}
		if edit.What != "" {
			edit.Since = since
			tell(edit)
			changed = changed || !edit.Possible
		}
	}
	return changed, errors.Join(errs...)
}

// postpone keeps a table that could not be read due.
func (l *look) postpone(c cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[c.table].edited = l.seen[c.table].edited || c.foreign
}

// due lists the tables that it is time to read.
func (l *look) due(ctx context.Context, now time.Time) ([]cause, error) {
	l.mu.Lock() // also while the kernel is asked: what it says is compared with what was last known
	defer l.mu.Unlock()
	stamps, err := l.tools.tables.Stamps(ctx)
	if err != nil {
		return nil, err
	}
	var all []cause
	for table, s := range l.seen {
		stamp := stamps[l.tools.id(table)]
		c := cause{table: table, there: stamp != Stamp{}, number: l.number, quiet: l.running == 0}
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

// compare reads a table and returns the edit it shows; one without What is none.
func (l *look) compare(ctx context.Context, c cause) (Edit, error) {
	took := stopwatch()
	var now Digest
	if c.there {
		var err error
		if now, err = l.tools.tables.Digest(ctx, l.tools.id(c.table), l.seed, l.ours); err != nil {
			return Edit{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seen[c.table]
	edit := s.judge(c, now)
	if c.quiet { // otherwise what is named may be yet to come
		maps.DeleteFunc(s.mine, func(_ string, number uint64) bool { return number <= c.number })
	}
	if c.quiet && c.number == l.number { // otherwise the end of a Restore says what it looks like
		s.stamp = now.Stamp
	}
	s.digest, s.known, s.at = now, true, time.Now()
	s.cost = took()
	return edit, nil
}

// judge returns the edit that a new digest shows. From here on the digest is what
// must not change, so chains that a Restore named since the last one, and a table
// that was never read, may have been changed unnoticed.
func (s *sight) judge(c cause, now Digest) Edit {
	if !s.known {
		return Edit{What: "rules read for the first time" + where(c.table), Possible: true}
	}
	var edits found
	for _, what := range differences(s.digest, now, func(chain string) bool { return s.mine[chain] > 0 }) {
		edits.add(what + where(c.table))
	}
	switch {
	case len(edits.what) > 0:
		return Edit{What: edits.String()}
	case len(s.mine) > 0 && (c.foreign || c.quiet):
		// If foreign, the change may be in any of these chains, or in none of ours.
		return Edit{What: "chains just written" + where(c.table), Possible: !c.foreign}
	}
	return Edit{}
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
	stamps, _ := l.tools.tables.Stamps(ctx)
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
	stamps, _ := l.tools.tables.Stamps(ctx)
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
