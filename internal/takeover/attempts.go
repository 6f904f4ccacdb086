package takeover

import (
	"log/slog"
	"time"
)

// failure logs when attempts begin to fail, fail for another reason, or succeed again.
type failure struct {
	log          *slog.Logger
	began, ended string // messages; ended may be empty: it logs none
	last         string // the error logged last
}

func (f *failure) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == f.last:
	case text != "":
		f.log.Warn(f.began, "error", text)
	case f.ended != "":
		f.log.Info(f.ended)
	}
	f.last = text
}

// backoff returns waits that double.
type backoff struct{ first, last, wait time.Duration }

func (b *backoff) next() time.Duration {
	b.wait = min(max(b.first, 2*b.wait), b.last)
	return b.wait
}

func (b *backoff) reset() { b.wait = 0 }
