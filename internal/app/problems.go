package app

import (
	"context"
	"log/slog"
	"slices"

	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

func (o Options) log(problems []route.Problem) {
	for _, p := range problems {
		attrs := []slog.Attr{
			slog.String("object", p.Object), slog.String("field", p.Field),
			slog.String("value", text.Short(p.Value)), slog.String("reason", p.Reason),
		}
		if p.Count > 1 {
			attrs = append(attrs, slog.Int("count", p.Count))
		}
		attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.String() == "" })
		o.Log.LogAttrs(context.Background(), slog.LevelWarn, "Problem", attrs...)
	}
}

// digest returns a Digest that logs problems, and records Events about them.
func (o Options) digest(record func(event.Event)) *event.Digest {
	return event.NewDigest(event.DigestOptions{
		Report: func(problems []route.Problem) {
			o.log(problems)
			for _, e := range event.OfProblems(problems) {
				record(e)
			}
		},
		Summary: func(g event.Group, p route.Problem) {
			o.log([]route.Problem{p})
			if e, ok := event.OfSummary(g, p); ok {
				record(e)
			}
		},
	})
}

// logged returns a Digest that only logs problems, for commands.
func (o Options) logged() *event.Digest { return o.digest(func(event.Event) {}) }

// observe logs a successful write; the loop logs failures. It logs a periodic comparison that found nothing, and a
// repeated attempt to write what the kernel refuses, at the debug level.
func (o Options) observe(s proxy.Sync) {
	level := slog.LevelDebug
	again := s.Cause == proxy.Period && s.Steps == 0 || s.Cause == proxy.Failure && s.Refused > 0
	if s.Full() && !again {
		level = slog.LevelInfo
	}
	attrs := []any{
		"services", s.Services, "steps", s.Steps, "compile", s.Compile, "apply", s.Apply, "cause", s.Cause.String(),
	}
	if s.Refused > 0 {
		attrs = append(attrs, "refused", s.Refused)
	}
	if s.Err == nil {
		o.Log.Log(context.Background(), level, "Synced", attrs...)
	}
	if o.Synced != nil {
		o.Synced(s)
	}
}

// notProgrammed logs which Services are not programmed, and why, when that begins or the reason changes.
type notProgrammed struct {
	log   *slog.Logger
	level slog.Level
}

// Applied implements proxy.Follower.
func (n notProgrammed) Applied(c route.Change) {
	for _, t := range c.Touched {
		if t.New == nil || t.New.Ignored == "" || t.Old != nil && t.Old.Ignored == t.New.Ignored {
			continue
		}
		n.log.Log(context.Background(), n.level, "Not programmed", "service", t.Name.String(), "reason", t.New.Ignored)
	}
}

// changes records which Services changed and how, once the kernel has the change, and logs it at -v 2. It lists
// at most maxChanges of one write, and logs at most changesPerSecond.
type changes struct {
	log     *slog.Logger
	record  func(event.Event)
	limit   *rate.Limiter
	omitted int // from the log, since its last line
	started bool
}

const (
	maxChanges       = 1000
	changesPerSecond = 10
	changesAtOnce    = 100
	levelOfChanges   = slog.Level(-2) // of -v 2
)

func newChanges(log *slog.Logger, record func(event.Event)) *changes {
	return &changes{log: log, record: record, limit: rate.NewLimiter(changesPerSecond, changesAtOnce)}
}

// Applied implements proxy.Follower.
func (c *changes) Applied(change route.Change) {
	touched := change.Touched
	if !c.started {
		c.started = true
		notProgrammed{c.log, slog.LevelDebug}.Applied(change)
		touched = nil
		c.take(event.FirstServices(programmed(change.Table)))
	}
	if n := len(touched) - maxChanges; n > 0 {
		c.take(event.ManyServices(n))
		touched = touched[n:]
	}
	for _, t := range touched {
		c.take(event.OfChange(t))
	}
}

// programmed returns how many Services have rules: headless ones, for example, have none.
func programmed(t *route.Table) (n int) {
	for _, svc := range t.Services {
		if len(svc.Ports) > 0 {
			n++
		}
	}
	return n
}

// take records and logs an Event.
func (c *changes) take(e event.Event) {
	c.record(e)
	ctx := context.Background()
	if !c.log.Enabled(ctx, levelOfChanges) {
		return
	}
	if !c.limit.Allow() {
		c.omitted++
		return
	}
	attrs := []slog.Attr{slog.String("reason", e.Reason), slog.String("note", e.Note)}
	if e.Name != "" {
		attrs = slices.Insert(attrs, 0, slog.String("service", e.Namespace+"/"+e.Name))
	}
	if c.omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", c.omitted))
		c.omitted = 0
	}
	c.log.LogAttrs(ctx, levelOfChanges, "Changed", attrs...)
}
