package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// reporter is told of problems with objects, each once.
type reporter = func([]route.Problem)

// report tells problems with objects to the log.
func (o Options) report(problems []route.Problem) {
	for _, p := range problems {
		said := []slog.Attr{
			slog.String("object", p.Object), slog.String("field", p.Field),
			slog.String("value", shortened(p.Value)), slog.String("reason", p.Reason),
		}
		said = slices.DeleteFunc(said, func(a slog.Attr) bool { return a.Value.String() == "" })
		o.Log.LogAttrs(context.Background(), slog.LevelWarn, "Problem", said...)
	}
}

// shortened is as much of a value as fits into a line.
func shortened(value string) string {
	const most = 200
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

// observe logs what was written; what was not, the loop does. A comparison that
// nobody waits for and that finds nothing is not worth a line, nor is one more
// attempt at what the kernel does not take.
func (o Options) observe(s proxy.Sync) {
	level := slog.LevelDebug
	again := s.Cause == proxy.Period && s.Steps == 0 || s.Cause == proxy.Failure && s.Refused > 0
	if s.Full() && !again {
		level = slog.LevelInfo
	}
	said := []any{"services", s.Services, "steps", s.Steps, "compile", s.Compile, "apply", s.Apply, "cause", s.Cause.String()}
	if s.Refused > 0 {
		said = append(said, "refused", s.Refused)
	}
	if s.Err == nil {
		o.Log.Log(context.Background(), level, "Synced", said...)
	}
	if o.Synced != nil {
		o.Synced(s)
	}
}
