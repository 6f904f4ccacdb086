// Package work runs the work of parts that follow the changes of the loop: when a change asks for
// it, when more is due, and again after a failure.
package work

import (
	"context"
	"time"
)

const (
	// The work takes a fifth of one CPU at most, however many the changes.
	defaultRest = 4
	maxRest     = 5 * time.Second

	// The delay after a failure doubles from firstRetry to lastRetry.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Loop calls a function whenever there is work. Its methods may be called by several goroutines.
type Loop struct {
	// Rest is for how many times the duration of a call Run rests after it, up to 5 seconds. New sets 4.
	Rest int

	do     func(context.Context) (time.Duration, error)
	failed func(error)
	wake   chan struct{}
}

// New returns a Loop that calls do, which does all work that is due. It returns the time until more
// is due; 0: none is before the next Wake. After an error do is called again after a delay. failed
// gets each error, unless that of the call before had the same text; nil: do returns none.
func New(do func(context.Context) (time.Duration, error), failed func(error)) *Loop {
	return &Loop{defaultRest, do, failed, make(chan struct{}, 1)}
}

// Wake makes Run call the function soon. It returns at once.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // Run wakes anyway
	}
}

// Run calls the function at once, after each Wake, and when work is due, until the context ends. It returns nil then.
func (l *Loop) Run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	last, retry := "", firstRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-due.C:
		}
		began := time.Now()
		next, err := l.do(ctx)
		if ctx.Err() != nil {
			return nil
		}
		rest := min(time.Duration(l.Rest)*time.Since(began), maxRest)
		if err == nil {
			last, retry = "", firstRetry
		} else {
			if text := err.Error(); text != last {
				last = text
				l.failed(err)
			}
			next, retry = retry, min(2*retry, lastRetry)
		}
		due.Reset(rest)
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		}
		if next > 0 {
			due.Reset(next - rest)
		}
	}
}
