//go:build linux

package harness

import (
	"regexp"
	"strings"
	"sync"
	"time"
)

// logLimit bounds how many bytes of output a Log keeps: twice as many at most.
const logLimit = 4 << 20

// Log keeps what a program prints and the time of each line. Beyond 8 MB it drops
// the oldest lines. Its methods may be used by several goroutines.
type Log struct {
	mu    sync.Mutex
	lines []Line // the last one may be incomplete
	size  int    // bytes in lines
	total int    // bytes written
}

// Line is one line of a log, without its end.
type Line struct {
	Text string
	Time time.Time // when the line was complete
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.size, l.total = l.size+len(b), l.total+len(b)
	for i, piece := range strings.Split(string(b), "\n") {
		if i > 0 || len(l.lines) == 0 {
			l.lines = append(l.lines, Line{})
		}
		last := &l.lines[len(l.lines)-1]
		last.Text, last.Time = last.Text+piece, now
	}
	if l.size > 2*logLimit {
		l.shorten()
	}
	return len(b), nil
}

// shorten drops the oldest lines, and the beginning of a very long last line.
func (l *Log) shorten() {
	kept := 0
	for i := len(l.lines) - 1; i >= 0; i-- {
		if kept += len(l.lines[i].Text) + 1; kept > logLimit {
			l.lines = append([]Line(nil), l.lines[min(i+1, len(l.lines)-1):]...)
			break
		}
	}
	last := &l.lines[len(l.lines)-1]
	last.Text = last.Text[max(0, len(last.Text)-logLimit):]
	l.size = len(l.text())
}

func (l *Log) text() string {
	var b strings.Builder
	for i, line := range l.lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(line.Text)
	}
	return b.String()
}

// String returns all output that is kept.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text()
}

// End returns the last 2,000 bytes of the output.
func (l *Log) End() string {
	text := l.String()
	return strings.TrimSpace(text[max(0, len(text)-2000):])
}

// Size returns how many bytes were printed, also of lines that are dropped.
func (l *Log) Size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Count returns how often a text was printed.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Lines returns the complete lines that contain all of the words.
func (l *Log) Lines(words ...string) []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Line
	for _, line := range l.lines[:max(0, len(l.lines)-1)] {
		if line.has(words) {
			out = append(out, line)
		}
	}
	return out
}

func (l Line) has(words []string) bool {
	for _, w := range words {
		if !strings.Contains(l.Text, w) {
			return false
		}
	}
	return true
}

// Field returns the value of a field of slog's text format; "" if it has none.
func (l Line) Field(name string) string {
	m := regexp.MustCompile(`(?:^| )` + name + `=(?:"((?:[^"\\]|\\.)*)"|(\S+))`).FindStringSubmatch(l.Text)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}
