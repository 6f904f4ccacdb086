package kube

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// demoted is a slog.Handler that logs messages of libraries at the debug level: the proxy logs failures itself.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// intended begins what client-go logs once for each kind about IsWatchListSemanticsUnSupported of a listing, as if it
// were a fault. To list is a choice: docs/decisions/0031-one-list-at-the-start.md.
const intended = "The client used to build this informer/reflector doesn't support WatchList semantics."

// Handle checks the level, because logr passes errors on without a call of Enabled.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) || strings.HasPrefix(r.Message, intended) {
		return nil
	}
	r.Level = min(r.Level, slog.LevelDebug)
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

// DemoteLibraries sends the messages that client libraries log through process-wide loggers to log at the debug level.
// Call it at the start of a program, before there is a client.
func DemoteLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
}

// contextClock is a clock whose After ends with a context: a reflector waits on it alone while a server is away.
type contextClock struct {
	clock.RealClock

	done context.Context
}

func (c contextClock) After(d time.Duration) <-chan time.Time {
	ctx, cancel := context.WithTimeout(c.done, d)
	over := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() {
		cancel()
		over <- c.Now()
	})
	return over
}
