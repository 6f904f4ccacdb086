package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"
)

// otherModes removes the rules of other planes of Sluice, each until that succeeded once.
type otherModes struct {
	pending []Leftover
	removed []string // sentences
	log     *slog.Logger
	failure failure
	retry   backoff
}

func newOtherModes(o Options) otherModes {
	return otherModes{
		pending: o.Others, log: o.Log, retry: backoff{first: o.Soon, last: o.Rarely},
		failure: failure{log: o.Log, began: "Cannot remove leftovers of Sluice in another mode, retrying"},
	}
}

// remove tries once, and returns the time until the next attempt.
func (m *otherModes) remove(ctx context.Context) time.Duration {
	var err error
	var pending []Leftover
	for _, l := range m.pending {
		gone, removeErr := l.Remove(ctx)
		if what := strings.Join(gone, ", "); what != "" { // even if others failed
			m.log.Info("Removed leftovers of Sluice in another mode", "mode", l.Mode, "removed", what)
			m.removed = append(m.removed, fmt.Sprintf("removed leftovers of Sluice in mode %s: %s", l.Mode, what))
		}
		if removeErr != nil {
			pending = append(pending, l)
			err = errors.Join(err, fmt.Errorf("mode %s: %w", l.Mode, removeErr))
		}
	}
	if ctx.Err() != nil {
		return 0
	}
	m.pending = pending
	m.failure.report(err)
	if len(pending) == 0 {
		return math.MaxInt64
	}
	return m.retry.next()
}

// lines returns a sentence for each removal, and for a failure.
func (m *otherModes) lines() []string {
	lines := slices.Clone(m.removed)
	if m.failure.last != "" {
		lines = append(lines, "cannot remove leftovers of Sluice in another mode, retrying: "+m.failure.last)
	}
	return lines
}
