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

// The kernel reports no changes of legacy tables, so they are polled. Reading the
// size of a table costs very little, reading its rules costs much. So the sizes are read
// at each poll; the rules as often as their cost permits: soon if the size changed,
// or after a Restore; else seldom, as a rule may replace another of its size.
//
// Rules that are read after a Restore do not prove what the Restore wrote: another
// program may have changed them in between. So each Restore is followed by one Edit that
// is only possible, and the receiver compares the table with what it should hold.
const (
	pauseWithoutCause = 1000             // pause after reading a table, in multiples of its CPU time: 0.1 %
	pauseWithCause    = 20               // the same after a change: 5 %
	longestPause      = 10 * time.Minute // without a cause

	firstPoll = 10 * time.Millisecond // after an edit; later ones come after an eighth of the time since then, up to the period
	lastRetry = 30 * time.Second      // longest wait after a poll that failed, unless the period is longer
)

// tableReader reads legacy tables: Kernel. Where it fails, the programs may still be
// able to read and write the tables.
type tableReader interface {
	Stamps(ctx context.Context) (map[TableID]Stamp, error)
	read(ctx context.Context, id TableID) (*legacyTable, error)
}

// legacyWatch polls legacy tables.
type legacyWatch struct {
	tools *Tools
	ours  func(chain string) bool
	seed  maphash.Seed

	mu     sync.Mutex // held while a Restore runs, and while tables are read
	tables map[Table]*tableState
	polled time.Time // when the last poll began
}

// tableState is the last known state of a table.
type tableState struct {
	stamp   Stamp           // after the last reading, or Restore
	edited  time.Time       // of the first Restore that found it changed by another program; zero: none
	written map[string]bool // chains that the input of a Restore named since the last reading

	known  bool // digest was read
	digest Digest
	at     time.Time     // of the last reading
	cost   time.Duration // CPU time of the last reading
}

// reading is the contents of a table at a poll.
type reading struct {
	table   Table
	rules   *legacyTable    // nil: there is no such table
	foreign bool            // another program changed the size
	until   time.Time       // it did so before this Restore; zero: perhaps later
	written map[string]bool // as of tableState
	cost    time.Duration
}

// watchLegacy polls until the context ends. A poll that fails is logged and tried again
// after a wait that doubles; meanwhile each try reports an edit as possible, so that the
// tables are compared in full instead.
func (t *Tools) watchLegacy(ctx context.Context, ours func(string) bool, subscribed func(), report func(Edit)) error {
	w := &legacyWatch{tools: t, ours: ours, seed: maphash.MakeSeed(), tables: map[Table]*tableState{}}
	for _, f := range []Family{IPv4, IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			w.tables[Table{f, name}] = &tableState{written: map[string]bool{}}
		}
	}
	t.legacy.Store(w)
	defer t.legacy.Store(nil)
	wait := t.opts.Poll
	poll := func(report func(Edit)) {
		changed, err := w.poll(ctx, report)
		if ctx.Err() != nil {
			return
		}
		t.logTrouble(err)
		if err != nil {
			report(Edit{What: "tables that cannot be read", Possible: true})
		}
		wait = t.nextPoll(wait, changed, err)
	}
	poll(func(Edit) {}) // everything is compared at the start anyway
	subscribed()
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
			poll(report)
		}
	}
}

// nextPoll returns how long to wait for the next poll, given the wait before the
// last one and its outcome. A program that changes rules may do it again at once.
func (t *Tools) nextPoll(last time.Duration, changed bool, err error) time.Duration {
	period := t.opts.Poll
	switch {
	case err != nil:
		return min(2*max(last, period), max(lastRetry, period))
	case changed:
		return min(firstPoll, period)
	}
	return min(last+last/8, period)
}

// poll reads what is due, and reports whether another program made a change. A table
// that cannot be read does not affect the others.
func (w *legacyWatch) poll(ctx context.Context, report func(Edit)) (changed bool, err error) {
	since := w.polled
	w.polled = time.Now()
	readings, err := w.read(ctx)
	for _, r := range readings {
		if edit := w.edit(r); edit.What != "" {
			edit.Since = since
			report(edit)
			changed = changed || !edit.Possible
		}
	}
	return changed, err
}

// read reads the tables that are due.
func (w *legacyWatch) read(ctx context.Context) (all []reading, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamps, err := w.tools.tables.Stamps(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for table, s := range w.tables {
		id := w.tools.id(table)
		stamp, exists := stamps[id]
		r := reading{table: table, foreign: !s.edited.IsZero() || stamp != s.stamp, written: s.written}
		if stamp == s.stamp {
			r.until = s.edited
		}
		pause := min(pauseWithoutCause*s.cost, longestPause)
		if r.foreign || len(s.written) > 0 {
			pause = pauseWithCause * s.cost
		}
		if !exists && !r.foreign || w.polled.Sub(s.at) < pause {
			continue
		}
		took := stopwatch()
		if exists {
			if r.rules, err = w.tools.tables.read(ctx, id); err != nil {
				errs = append(errs, fmt.Errorf("table %s: %w", id, err))
				continue
			}
			stamp = r.rules.stamp
		}
		s.stamp, s.edited, s.written = stamp, time.Time{}, map[string]bool{}
		r.cost = took()
		all = append(all, r)
	}
	return all, errors.Join(errs...)
}

// edit returns the change that a reading shows; one without What is none. Chains that a
// Restore named since the last reading, and a table that was never read, may have been
// changed unnoticed.
func (w *legacyWatch) edit(r reading) Edit {
	took := stopwatch()
	s, now := w.tables[r.table], Digest{}
	if r.rules != nil {
		now = r.rules.digest(w.seed, w.ours)
	}
	known, before := s.known, s.digest
	s.known, s.digest, s.at, s.cost = true, now, time.Now(), r.cost+took()
	if !known {
		return Edit{What: "rules read for the first time" + where(r.table), Possible: true}
	}
	var edits found
	for _, what := range differences(before, now, func(chain string) bool { return r.written[chain] }) {
		edits.add(what + where(r.table))
	}
	switch {
	case len(edits.what) > 0:
		return Edit{What: edits.String()}
	case len(r.written) > 0: // if foreign, any of these chains may have changed, or none of the proxy
		return Edit{What: "chains just written" + where(r.table), Possible: !r.foreign, Until: r.until}
	}
	return Edit{}
}

// write runs a Restore, and records its effect on the tables that input names. If the
// kernel does not return sizes, all of them count as edited, and are read.
func (w *legacyWatch) write(ctx context.Context, f Family, input string, restore func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	named := chainsOf(input)
	stamps, _ := w.tools.tables.Stamps(ctx)
	for name, chains := range named {
		if s := w.tables[Table{f, name}]; s != nil {
			if s.edited.IsZero() && stamps[w.tools.id(Table{f, name})] != s.stamp {
				s.edited = time.Now()
			}
			maps.Copy(s.written, chains)
		}
	}
	err := restore()
	stamps, _ = w.tools.tables.Stamps(context.WithoutCancel(ctx))
	for name := range named {
		if s := w.tables[Table{f, name}]; s != nil {
			s.stamp = stamps[w.tools.id(Table{f, name})]
		}
	}
	return err
}

// stopwatch returns a function that returns the CPU time used since, at most: on a busy
// machine more time passes.
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

// logTrouble logs once that the tables cannot be read, and once that they can be again.
func (t *Tools) logTrouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	before := t.WatchTrouble()
	t.trouble.Store(&text)
	switch text {
	case before:
	case "":
		t.opts.Log.Info("The tables of iptables can be read again")
	default:
		t.opts.Log.Warn("Cannot read the tables of iptables to find changes by other programs; retrying, and meanwhile comparing all rules by "+
			programName(IPv4, "-"+string(t.variant), "-save"), "error", err)
	}
}

// WatchTrouble returns why changes by other programs are found by comparing all
// rules, and not by the kernel's own tables; empty if they are.
func (t *Tools) WatchTrouble() string {
	if text := t.trouble.Load(); text != nil {
		return *text
	}
	return ""
}
