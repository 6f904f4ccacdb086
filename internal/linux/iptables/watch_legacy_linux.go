package iptables

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// The kernel reports no changes of legacy tables, so their sizes and numbers of rules are polled.
// These show neither whose rules changed, nor that a rule was replaced by one of its size, nor what
// another program wrote during a Restore. The receiver of an Edit compares the tables with what they
// should hold: soon after a change, and when that is cheap after a Restore and after comparePeriod.
const (
	comparePeriod = 5 * time.Minute

	// firstPoll is after an edit; later polls come after an eighth of the time since then, up to the period.
	firstPoll = 10 * time.Millisecond
)

// legacyWatch polls legacy tables.
type legacyWatch struct {
	tools *Tools
	read  func(context.Context) (map[TableID]Stamp, error) // the stamps of all tables

	mu      sync.Mutex // held while a Restore runs, and during a poll
	stamps  map[TableID]Stamp
	changed []string  // by other programs, since the last poll
	wrote   bool      // a Restore ran since the last poll
	doubted time.Time // when the last Edit was returned
}

// watchLegacy polls until the context ends.
func (t *Tools) watchLegacy(ctx context.Context, subscribed func(), report func(Edit)) error {
	w := &legacyWatch{tools: t, read: t.kernel.Stamps}
	t.legacy.Store(w)
	defer t.legacy.Store(nil)
	_ = w.poll(ctx) // everything is compared at the start anyway
	subscribed()
	for wait := t.opts.Poll; ; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		edit := w.poll(ctx)
		if edit.What != "" && ctx.Err() == nil {
			report(edit)
		}
		wait = t.nextPoll(wait, edit)
	}
}

// nextPoll returns how long to wait for the next poll, given the wait before the
// last one and its outcome. A program that changes rules may do it again at once.
func (t *Tools) nextPoll(last time.Duration, edit Edit) time.Duration {
	if edit.Unclear {
		return min(firstPoll, t.opts.Poll)
	}
	return min(last+last/8, t.opts.Poll)
}

// poll returns what may have changed since the last poll; an Edit without What is none.
func (w *legacyWatch) poll(ctx context.Context) Edit {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.compare(ctx)
	edit := Edit{What: strings.Join(w.changed, ", "), Unclear: true}
	switch {
	case edit.What != "":
	case err != nil:
		edit = Edit{What: "tables that cannot be read", Possible: true}
	case w.wrote:
		edit = Edit{What: "chains just written", Possible: true}
	case time.Since(w.doubted) >= comparePeriod:
		edit = Edit{What: "rules replaced by others of the same size", Possible: true}
	default:
		return Edit{}
	}
	w.changed, w.wrote, w.doubted = nil, false, time.Now()
	return edit
}

// compare reads the stamps, and records which tables have changed.
func (w *legacyWatch) compare(ctx context.Context) error {
	now, err := w.read(ctx)
	if err != nil {
		return err
	}
	for _, f := range []Family{IPv4, IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			table := Table{f, name}
			what := "rules" + where(table)
			if id := w.tools.id(table); w.stamps[id] != now[id] && !slices.Contains(w.changed, what) {
				w.changed = append(w.changed, what)
			}
		}
	}
	w.stamps = now
	return nil
}

// write runs a Restore. What other programs write during it is in doubt until the tables are compared.
func (w *legacyWatch) write(ctx context.Context, restore func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.compare(ctx) // the comparison after a write finds what this does not
	err := restore()
	if now, readErr := w.read(context.WithoutCancel(ctx)); readErr == nil {
		w.stamps = now
	}
	w.wrote = true
	return err
}
