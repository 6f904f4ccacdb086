package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"
)

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
	timer := time.NewTimer(maxWriteWait)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		s.busy = done
		return nil
	}
}

// report returns a line about the dropped writes.
func (s *logStream) report() []byte {
	var line bytes.Buffer
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "The log was not read for a while; lines were dropped", 0)
	r.Add("writes", s.dropped)
	_ = logFormat(s.format, &line).Handle(context.Background(), r) // a buffer takes everything
	return line.Bytes()
}
