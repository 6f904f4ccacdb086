package iptables

import (
	"context"
	"hash/maphash"
	"time"
)

const (
	firstPoll = 10 * time.Millisecond // after an edit; later ones come after an eighth of the time since then, up to the period
	lastRetry = 30 * time.Second      // longest wait after a poll that failed, unless the period is longer
)

// look watches legacy tables until the context ends. A poll that fails is
// reported and tried again after a wait that doubles. It never ends the watch:
// rules are written without it. Until it works again, each try reports an edit
// as possible, so that the tables are compared in full instead.
func (t *Tools) look(ctx context.Context, ours func(string) bool, subscribed func(), tell func(Edit)) error {
	l := &look{tools: t, ours: ours, seed: maphash.MakeSeed(), seen: map[Table]*sight{}}
	for _, f := range []Family{IPv4, IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			l.seen[Table{f, name}] = &sight{mine: map[string]uint64{}}
		}
	}
	t.own.join(l)
	defer t.own.part(l)
	wait := t.poll()
	poll := func(tell func(Edit)) {
		changed, err := l.round(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		t.report(err)
		if err != nil {
			tell(Edit{What: "tables that cannot be read", Possible: true})
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
			poll(tell)
		}
	}
}

// nextPoll returns how long to wait for the next poll, given the wait before the
// last one and its outcome. A program that changes rules may do it again at once.
func (t *Tools) nextPoll(last time.Duration, changed bool, err error) time.Duration {
	period := t.poll()
	switch {
	case err != nil:
		return min(2*max(last, period), max(lastRetry, period))
	case changed:
		return min(firstPoll, period)
	}
	return min(last+last/8, period)
}

// report logs once that the tables cannot be read, and once that they can be
// again.
func (t *Tools) report(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	before := t.WatchTrouble()
	t.trouble.Store(&said)
	switch said {
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
	if said := t.trouble.Load(); said != nil {
		return *said
	}
	return ""
}
