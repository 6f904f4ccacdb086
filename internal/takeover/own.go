package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// own removes what other planes of Sluice left, each until that went well once.
type own struct {
	pending []Leftover
	removed []string // in sentences
	log     *slog.Logger
	said    string        // the error last logged
	wait    time.Duration // before the next try
}

// remove tries once, and says when to try again; 0: there is nothing left to do.
func (o *own) remove(ctx context.Context, soon, rarely time.Duration) time.Duration {
	var errs []error
	var pending []Leftover
	for _, l := range o.pending {
		if err := o.take(ctx, l); err != nil {
			pending = append(pending, l)
			errs = append(errs, fmt.Errorf("mode %s: %w", l.Mode, err))
		}
	}
	if ctx.Err() != nil {
		return 0
	}
	o.pending = pending
	o.report(errors.Join(errs...))
	if len(pending) == 0 {
		o.wait = 0
		return 0
	}
	o.wait = min(max(soon, 2*o.wait), rarely)
	return o.wait
}

// take removes what one plane left. Part of it may be gone although the rest is
// not.
func (o *own) take(ctx context.Context, l Leftover) error {
	gone, err := l.Remove(ctx)
	if len(gone) > 0 {
		what := strings.Join(gone, ", ")
		o.log.Info("Removed what Sluice left in another mode", "mode", l.Mode, "removed", what)
		o.removed = append(o.removed, fmt.Sprintf("removed what Sluice left in mode %s: %s", l.Mode, what))
	}
	return err
}

// report logs an error when it is new.
func (o *own) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.said {
		o.log.Warn("Cannot remove what Sluice left in another mode, retrying", "error", text)
	}
	o.said = text
}

// lines say what is gone, and what keeps the rest.
func (o *own) lines() []string {
	lines := o.removed
	if o.said != "" {
		lines = append(slices.Clip(lines), "cannot remove what Sluice left in another mode, retrying: "+o.said)
	}
	return lines
}
