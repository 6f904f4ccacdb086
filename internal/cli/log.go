package cli

import (
	"io"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/config"
)

// What -v shows. A verbosity of n lets everything through that is logged at
// slog.Level(-n) or above, so that slog's debug is 4:
//
//	0 to 3  what a person should know: starting and stopping, the first write of
//	        all, what failed and that it works again, what is wrong with objects,
//	        changes of the configuration; nothing as long as nothing happens
//	4       also each write with its cause, its steps and its times, Services that
//	        are not programmed and why, what client libraries say
//	5 to 10 the same; kept for more
func levelOf(verbosity int) slog.Level { return slog.Level(-max(0, verbosity)) }

// logs is where this process logs to and how, which may change at any time.
//
// All goes to standard error, or with split streams only errors do and the rest
// to standard output. There it may be buffered: what was logged in the last
// flush period is lost if the process is killed. An error takes what was logged
// before it along.
type logs struct {
	out, err *sink
	streams  [2]*patient // below both

	mu       sync.Mutex     // held while settings change
	settings config.Logging // as Set got them
	current  atomic.Pointer[logSetup]
}

// newLogs logs to these streams, as settings say.
func newLogs(settings config.Logging, stdout, stderr io.Writer) *logs {
	streams := [2]*patient{{to: stdout}, {to: stderr}}
	l := &logs{out: &sink{to: streams[0]}, err: &sink{to: streams[1]}, streams: streams}
	l.apply(settings)
	return l
}

// Logger returns the logger, which follows changed settings, as all that is
// made from it does.
func (l *logs) Logger() *slog.Logger { return slog.New(newLogHandler(l)) }

// Set makes other settings hold. The same ones as before change nothing: a
// verbosity that was set since stays.
func (l *logs) Set(settings config.Logging) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !reflect.DeepEqual(settings, l.settings) {
		l.apply(settings)
	}
}

// SetVerbosity makes another -v hold until the settings change.
func (l *logs) SetVerbosity(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.settings
	changed.Verbosity = n
	l.current.Store(l.setup(changed))
}

// Flush writes what is buffered. It is for the end of the process.
func (l *logs) Flush() { l.out.Flush() }

func (l *logs) apply(settings config.Logging) {
	l.settings = settings
	for _, s := range l.streams {
		s.speak(settings.Format)
	}
	var size int64
	if settings.SplitStream {
		size = settings.InfoBufferSize
	}
	l.out.buffer(size, settings.FlushFrequency)
	l.current.Store(l.setup(settings))
}

func (l *logs) setup(settings config.Logging) *logSetup {
	s := &logSetup{
		base: levelOf(settings.Verbosity),
		info: logFormat(settings.Format, l.err),
	}
	s.errors = s.info
	if settings.SplitStream {
		s.info = logFormat(settings.Format, l.out)
	}
	s.lowest = s.base
	for _, m := range settings.VModule {
		s.files = append(s.files, fileLevel{pattern: m.Pattern, level: levelOf(m.Verbosity)})
		s.lowest = min(s.lowest, levelOf(m.Verbosity))
	}
	return s
}

// logFormat writes records, all that it is given.
func logFormat(format string, to io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{Level: slog.Level(-1 << 31)}
	if format == "json" {
		return slog.NewJSONHandler(to, opts)
	}
	return slog.NewTextHandler(to, opts)
}
