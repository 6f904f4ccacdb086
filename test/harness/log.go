//go:build linux

package harness

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// logLimit is how many bytes of output a Log keeps at least; it keeps at most twice as many.
const logLimit = 4 << 20

// Log stores the output of a program, with the time of each line. Beyond 8 MB it drops the
// beginning. Its methods may be called concurrently.
type Log struct {
	mu    sync.Mutex
	text  []byte
	ends  []lineEnd
	total int // bytes written
}

// lineEnd is the offset of a line end in Log.text, and when it was written.
type lineEnd struct {
	offset int
	time   time.Time
}

// Line is a complete line of a log, without the line end.
type Line struct {
	Text string
	Time time.Time
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i, c := range b {
		if c == '\n' {
			l.ends = append(l.ends, lineEnd{len(l.text) + i, now})
		}
	}
	l.text = append(l.text, b...)
	l.total += len(b)
	if cut := len(l.text) - logLimit; cut > logLimit {
		l.text = append([]byte(nil), l.text[cut:]...)
		l.ends = slices.DeleteFunc(l.ends, func(e lineEnd) bool { return e.offset < cut })
		for i := range l.ends {
			l.ends[i].offset -= cut
		}
	}
	return len(b), nil
}

// String returns the stored output.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// End returns the last 2,000 bytes of the output.
func (l *Log) End() string {
	text := l.String()
	return strings.TrimSpace(text[max(0, len(text)-2000):])
}

// Size returns how many bytes were printed, including dropped ones.
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
	begin := 0
	for _, end := range l.ends {
		line := Line{string(l.text[begin:end.offset]), end.time}
		begin = end.offset + 1
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line.Text, w) }) {
			out = append(out, line)
		}
	}
	return out
}

// Field returns the value of a field of slog's text format; "" if it has none.
func (l Line) Field(name string) string {
	m := regexp.MustCompile(`(?:^| )` + name + `=(?:"((?:[^"\\]|\\.)*)"|(\S+))`).FindStringSubmatch(l.Text)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}
