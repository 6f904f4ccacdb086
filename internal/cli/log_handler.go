package cli

import (
	"context"
	"log/slog"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// logSetup is how to log. It does not change.
type logSetup struct {
	base   slog.Level // from here on everything is logged
	lowest slog.Level // below this nothing is, whatever its source file
	files  []fileLevel
	levels sync.Map // program counter -> slog.Level, for the places that have logged

	info, errors slog.Handler
}

// fileLevel is from which level on the source files that match a pattern log.
type fileLevel struct {
	pattern string
	level   slog.Level
}

// at returns from which level on the source at a program counter logs. The first
// pattern that its file matches counts, and only to log more.
func (s *logSetup) at(pc uintptr) slog.Level {
	if len(s.files) == 0 || pc == 0 {
		return s.base
	}
	if level, ok := s.levels.Load(pc); ok {
		return level.(slog.Level)
	}
	level := s.base
	name := sourceName(pc)
	for _, f := range s.files {
		if ok, err := path.Match(f.pattern, name); ok && err == nil {
			level = min(level, f.level)
			break
		}
	}
	s.levels.Store(pc, level)
	return level
}

// sourceName is the name of a source file, without folder and ending.
func sourceName(pc uintptr) string {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return strings.TrimSuffix(path.Base(frame.File), ".go")
}

// logHandler is a slog.Handler that does as the current setup says. Attributes
// and groups are kept, so that they can be given to the handlers of the next.
type logHandler struct {
	logs  *logs
	steps []func(slog.Handler) slog.Handler
	made  *atomic.Pointer[madeHandlers]
}

// madeHandlers are the handlers of one setup with what a logHandler adds.
type madeHandlers struct {
	of           *logSetup
	info, errors slog.Handler
}

func newLogHandler(l *logs, steps ...func(slog.Handler) slog.Handler) *logHandler {
	return &logHandler{logs: l, steps: steps, made: &atomic.Pointer[madeHandlers]{}}
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.logs.current.Load().lowest
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	m := h.handlers()
	if r.Level < m.of.at(r.PC) {
		return nil
	}
	if r.Level < slog.LevelError {
		return m.info.Handle(ctx, r)
	}
	h.logs.Flush()
	return m.errors.Handle(ctx, r)
}

// handlers returns those of the current setup.
func (h *logHandler) handlers() *madeHandlers {
	s := h.logs.current.Load()
	if m := h.made.Load(); m != nil && m.of == s {
		return m
	}
	m := &madeHandlers{of: s, info: s.info, errors: s.errors}
	for _, step := range h.steps {
		m.info, m.errors = step(m.info), step(m.errors)
	}
	h.made.Store(m)
	return m
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.with(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *logHandler) with(step func(slog.Handler) slog.Handler) slog.Handler {
	return newLogHandler(h.logs, append(slices.Clone(h.steps), step)...)
}
