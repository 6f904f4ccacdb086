package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/event"
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
		if p.Count > 1 {
			said = append(said, slog.Int("count", p.Count))
		}
		said = slices.DeleteFunc(said, func(a slog.Attr) bool { return a.Value.String() == "" })
		o.Log.LogAttrs(context.Background(), slog.LevelWarn, "Problem", said...)
	}
}

// How many problems are logged one by one: of those that differ in nothing but
// the object, and of one class with objects of one kind in one namespace. The
// others are counted.
const (
	loggedAlike   = 10
	loggedOfClass = 1000
)

// logged returns a Digest that brings problems to the log.
func (o Options) logged() *event.Digest {
	return event.NewDigest(event.DigestOptions{
		Levels:  []event.Level{{Group: event.SameProblem, Listed: loggedAlike}, {Group: event.SameClass, Listed: loggedOfClass}},
		Tell:    o.report,
		Summary: func(_ event.Group, p route.Problem) { o.report([]route.Problem{p}) },
	})
}

// reportAll tells problems to the log that are all there are.
func (o Options) reportAll(problems []route.Problem) {
	found := o.logged()
	found.Report(problems)
	found.Flush()
}

// How many problems become Events one by one. They are fewer than what is logged,
// as an Event is a request to the API server from each node.
const (
	warnedAlike   = 3
	warnedOfClass = 50
)

// warnings returns a Digest that makes Events of problems.
func warnings(record func(event.Event)) *event.Digest {
	return event.NewDigest(event.DigestOptions{
		Levels: []event.Level{{Group: event.SameProblem, Listed: warnedAlike}, {Group: event.SameClass, Listed: warnedOfClass}},
		Tell: func(problems []route.Problem) {
			for _, e := range event.OfProblems(problems) {
				record(e)
			}
		},
		Summary: func(g event.Group, p route.Problem) {
			if e, ok := event.OfSummary(g, p); ok {
				record(e)
			}
		},
	})
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
