package kube

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// demoted is what libraries log: none of it above the debug level, because what
// matters of it is said once elsewhere.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// Handle implements slog.Handler. It asks itself whether it is wanted, because
// logr passes errors on without asking.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) {
		return nil
	}
	r.Level = min(r.Level, slog.LevelDebug)
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler {
	return demoted{d.Handler.WithGroup(name)}
}

// DemoteLibraries sends what client libraries log by way of the process, and
// not of a Source, to log at the debug level. It is for the start of a program:
// no client may be at work yet.
func DemoteLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
}

// untilDone is a clock whose After ends with a context, because a reflector
// waits on it and nothing else when a server is not there.
type untilDone struct {
	clock.RealClock

	bound func(time.Duration) (context.Context, context.CancelFunc)
}

// stoppable returns a clock for work that ends with the context.
func stoppable(ctx context.Context) untilDone {
	return untilDone{bound: func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, d)
	}}
}

// After implements clock.Clock.
func (u untilDone) After(d time.Duration) <-chan time.Time {
	ctx, cancel := u.bound(d)
	over := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() {
		cancel()
		over <- u.Now()
	})
	return over
}
