package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// levelOf returns the level from which -v logs everything. Verbosity n logs records
// of slog.Level(-n) and above, so that slog's debug level is 4:
//
//	0 to 3  what an operator needs: start and stop, the first complete write, failures
//	        and their end, problems with objects, changes of the configuration; nothing
//	        while nothing happens
//	2       also a line for each change of a Service, within limits
//	4       also each write with its cause, its steps and its times, Services that
//	        are not programmed and why, and the log of client libraries
//	5 to 10 the same as 4
func levelOf(verbosity int) slog.Level { return slog.Level(-max(0, verbosity)) }

// logs is the log of this process. Everything goes to standard error; with split streams only errors do, and the rest
// goes to standard output. There it may be buffered: lines of the last flush period are lost if the process is killed.
// An error flushes the buffer first.
type logs struct {
	levels  logLevels
	handler logHandler
	out     *logStream
	file    io.Closer // that it writes to; nil: streams of the process
}

// openLogs returns a log to the file of the settings, or else to these streams.
func openLogs(settings config.Logging, stdout, stderr io.Writer) (*logs, error) {
	if settings.File == "" {
		return newLogs(settings, stdout, stderr), nil
	}
	file, err := os.OpenFile(settings.File, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	l := newLogs(settings, file, file)
	l.file = file
	return l, nil
}

// Close writes the buffer and closes the file.
func (l *logs) Close() {
	l.Flush()
	if l.file != nil {
		_ = l.file.Close() // lines are written at once
	}
}

func newLogs(settings config.Logging, stdout, stderr io.Writer) *logs {
	l := &logs{out: &logStream{to: stdout, format: settings.Format}, levels: logLevels{files: settings.VModule}}
	errors := logFormat(settings.Format, &logStream{to: stderr, format: settings.Format})
	l.handler = logHandler{levels: &l.levels, info: errors, errors: errors, flush: l.Flush}
	if settings.SplitStream {
		l.handler.info = logFormat(settings.Format, l.out)
		l.out.size, l.out.period = settings.InfoBufferSize, settings.FlushFrequency
	}
	l.SetVerbosity(settings.Verbosity)
	return l
}

// Logger returns a logger to this log.
func (l *logs) Logger() *slog.Logger { return slog.New(l.handler) }

// SetVerbosity sets another -v. It may be called at any time.
func (l *logs) SetVerbosity(n int) { l.levels.base.Set(levelOf(n)) }

// Flush writes the buffer. It is for the end of the process.
func (l *logs) Flush() { l.out.Flush() }

// logFormat returns a handler that writes records of every level.
func logFormat(format string, to io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{Level: slog.Level(math.MinInt32), ReplaceAttr: plainAttr}
	if format == "json" {
		return slog.NewJSONHandler(to, opts)
	}
	return slog.NewTextHandler(to, opts)
}

// plainAttr gives durations a unit in JSON too, as kube-proxy does. It prints every level below INFO as DEBUG: the
// levels of -v have names such as DEBUG+2 otherwise, which no reader of logs knows.
func plainAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		a.Value = slog.StringValue(v.String())
	case slog.Level:
		if v < slog.LevelInfo {
			a.Value = slog.StringValue(slog.LevelDebug.String())
		}
	}
	return a
}

// logLevels decides which records are logged.
type logLevels struct {
	base  slog.LevelVar // from this level on everything is logged
	files []config.VModule
}

// lowest returns the level below which nothing is logged, whatever its source file.
func (l *logLevels) lowest() slog.Level {
	lowest := l.base.Level()
	for _, f := range l.files {
		lowest = min(lowest, levelOf(f.Verbosity))
	}
	return lowest
}

// at returns the level from which the source at a program counter logs. The first
// pattern that matches the name of its file, without folder and extension, counts, and only to log more.
func (l *logLevels) at(pc uintptr) slog.Level {
	base := l.base.Level()
	if len(l.files) == 0 || pc == 0 {
		return base
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name := strings.TrimSuffix(path.Base(frame.File), ".go")
	for _, f := range l.files {
		if ok, err := path.Match(f.Pattern, name); ok && err == nil {
			return min(base, levelOf(f.Verbosity))
		}
	}
	return base
}

// logHandler is a slog.Handler that sends errors and other records to different handlers.
type logHandler struct {
	levels       *logLevels
	info, errors slog.Handler
	flush        func() // writes the buffer below info
}

func (h logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.levels.lowest()
}

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < h.levels.at(r.PC) {
		return nil
	}
	if r.Level < slog.LevelError {
		return h.info.Handle(ctx, r)
	}
	h.flush()
	return h.errors.Handle(ctx, r)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.info, h.errors = h.info.WithAttrs(attrs), h.errors.WithAttrs(attrs)
	return h
}

func (h logHandler) WithGroup(name string) slog.Handler {
	h.info, h.errors = h.info.WithGroup(name), h.errors.WithGroup(name)
	return h
}

// logStream is an io.Writer for lines to a stream whose reader may stop reading, such as a pipe. A write that takes
// longer than maxWriteWait continues in the background; until it ends, lines are dropped, and the next line is preceded
// by the number of dropped writes. With a size it buffers lines. Each Write is one whole line.
type logStream struct {
	to     io.Writer
	format string        // of the line about dropped writes
	size   int64         // of the buffer in bytes; 0: none
	period time.Duration // the longest time that a line stays in the buffer

	mu      sync.Mutex
	held    []byte
	timer   *time.Timer  // runs while held is not empty
	busy    <-chan error // delivers the end of the write in the background; nil: none runs
	dropped int          // writes
}

// maxWriteWait is how long a line may wait for the reader.
const maxWriteWait = 100 * time.Millisecond

var errNotRead = errors.New("the log is not read")

func (s *logStream) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == 0 {
		return len(line), s.send(line)
	}
	if len(s.held) == 0 {
		s.timer = time.AfterFunc(s.period, s.Flush)
	}
	s.held = append(s.held, line...)
	if int64(len(s.held)) < s.size {
		return len(line), nil
	}
	return len(line), s.flush()
}

// Flush writes the buffer.
func (s *logStream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.flush() // the log is the only place to report it
}

func (s *logStream) flush() error {
	if len(s.held) == 0 {
		return nil
	}
	s.timer.Stop()
	err := s.send(s.held)
	s.held = s.held[:0]
	return err
}

// send writes lines, or drops them if the last write has not ended.
func (s *logStream) send(lines []byte) error {
	select {
	case err := <-s.busy:
		s.busy = nil
		if err != nil {
			s.dropped++
		}
	default:
	}
	if s.busy != nil {
		s.dropped++
		return errNotRead
	}
	text := bytes.Clone(lines) // the caller reuses its slice
	if s.dropped > 0 {
		text = append(s.report(), text...)
		s.dropped = 0
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.to.Write(text)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(maxWriteWait):
		s.busy = done
		return nil
	}
}

// report returns a line about the dropped writes.
func (s *logStream) report() []byte {
	var line bytes.Buffer
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "The reader of the log was too slow; lines were dropped", 0)
	r.Add("writes", s.dropped)
	_ = logFormat(s.format, &line).Handle(context.Background(), r) // a buffer takes everything
	return line.Bytes()
}
