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

// patient is a stream whose reader may stop reading for a while, as a pipe's
// may: nothing waits long for it. A write that takes long goes on by itself; what
// comes meanwhile is left out, and told of later.
type patient struct {
	to io.Writer

	mu     sync.Mutex
	format string       // of logs, for the line that tells
	busy   <-chan error // delivers the end of a write that takes long; nil: there is none
	lost   int          // writes that were left out
}

// longest is how long a write is waited for.
const longest = 100 * time.Millisecond

var errUnread = errors.New("nobody reads")

// Write implements io.Writer. Each is one or more whole lines.
func (p *patient) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case err := <-p.busy:
		p.busy = nil
		if err != nil {
			p.lost++
		}
	default:
	}
	if p.busy != nil {
		p.lost++
		return 0, errUnread
	}
	text := lines
	if p.lost > 0 {
		text = append(p.tell(), lines...)
		p.lost = 0
	}
	return len(lines), p.write(bytes.Clone(text)) // the caller's is used again
}

// write waits for the end of a write, but not for long.
func (p *patient) write(text []byte) error {
	done := make(chan error, 1)
	go func() {
		_, err := p.to.Write(text)
		done <- err
	}()
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		p.busy = done
		return nil
	}
}

// tell is a line about what was left out.
func (p *patient) tell() []byte {
	var line bytes.Buffer
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "Nobody read the log for a while, some of it was left out", 0)
	r.Add("writes", p.lost)
	_ = logFormat(p.format, &line).Handle(context.Background(), r) // a buffer takes everything
	return line.Bytes()
}

// speak sets the format.
func (p *patient) speak(format string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.format = format
}
