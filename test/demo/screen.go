//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// style is a text style by its terminal code.
type style string

const (
	strong style = "1"
	faint  style = "2"
	red    style = "1;31"
	green  style = "32"
	blue   style = "36"
)

// width bounds lines that show the output of programs.
const width = 95

// screen prints lines, with colours if the terminal has them.
type screen struct {
	mu      sync.Mutex
	w       io.Writer
	colours bool
	ended   bool
	chapter int
}

// newScreen uses colours on a terminal, unless the environment forbids them.
func newScreen(w *os.File, getenv func(string) string) *screen {
	_, err := unix.IoctlGetTermios(int(w.Fd()), unix.TCGETS)
	plain := err != nil || getenv("NO_COLOR") != "" || getenv("TERM") == "dumb"
	return &screen{w: w, colours: !plain}
}

// record records the output from now on, with colours even if this is no terminal.
func (s *screen) record(now func() time.Time) *recorder {
	r := &recorder{w: s.w, now: now}
	s.w, s.colours = r, true
	return r
}

// Write implements io.Writer. After end it prints nothing.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(b), nil
	}
	return s.w.Write(b)
}

// end prints a last line.
func (s *screen) end(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	fmt.Fprintf(s.w, "\n\n  %s\n", line)
}

func (s *screen) paint(st style, text string) string {
	if !s.colours {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// head begins a chapter.
func (s *screen) head(format string, args ...any) {
	s.chapter++
	fmt.Fprintf(s, "\n  %s  %s\n\n", s.paint(blue, fmt.Sprint(s.chapter)), s.paint(strong, fmt.Sprintf(format, args...)))
}

// say prints a line.
func (s *screen) say(format string, args ...any) {
	fmt.Fprintln(s, strings.TrimRight(fmt.Sprintf("     "+format, args...), " "))
}

// note prints a faint line.
func (s *screen) note(format string, args ...any) {
	s.say("%s", s.paint(faint, fmt.Sprintf(format, args...)))
}

// command prints a command that is run.
func (s *screen) command(format string, args ...any) {
	s.say("%s", s.paint(blue, "$ "+fmt.Sprintf(format, args...)))
}

// pass prints a successful check.
func (s *screen) pass(format string, args ...any) {
	fmt.Fprintf(s, "   %s %s\n", s.paint(green, "✓"), fmt.Sprintf(format, args...))
}

// bar draws n of most, padded to the width of 8 characters.
func bar(n, most int) string {
	const width, eighths = 8, "▏▎▍▌▋▊▉"
	if most <= 0 || n <= 0 {
		return strings.Repeat(" ", width)
	}
	filled := max(1, (n*width*8+most/2)/most)
	out := strings.Repeat("█", filled/8)
	if rest := filled % 8; rest > 0 {
		out += string([]rune(eighths)[rest-1])
	}
	return fmt.Sprintf("%-*s", width, out)
}

// clip cuts a text off at the width of a line.
func clip(text string) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// micros prints a short time in microseconds.
func micros(d time.Duration) string {
	return fmt.Sprintf("%d µs", d.Round(time.Microsecond).Microseconds())
}

// millis prints a time in milliseconds, with a decimal where it matters.
func millis(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return count(int(d.Round(time.Millisecond).Milliseconds())) + " ms"
}

// count prints a number with commas between thousands.
func count(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
