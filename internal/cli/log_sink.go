package cli

import (
	"io"
	"sync"
	"time"
)

// sink is a stream that may be buffered. Each Write is one whole line.
type sink struct {
	mu     sync.Mutex
	to     io.Writer
	size   int64         // of the buffer; 0: none
	period time.Duration // the longest time a line is held back
	held   []byte
	timer  *time.Timer // runs while something is held
}

// buffer changes how much is held back, and for how long.
func (s *sink) buffer(size int64, period time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.flush() // there is nowhere to tell
	s.size, s.period = size, period
}

// Write implements io.Writer.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == 0 {
		return s.to.Write(line)
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

// Flush writes what is held back.
func (s *sink) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.flush() // there is nowhere to tell
}

func (s *sink) flush() error {
	if len(s.held) == 0 {
		return nil
	}
	s.timer.Stop()
	_, err := s.to.Write(s.held)
	s.held = s.held[:0]
	return err
}
