//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// style is how a piece of text looks, as the terminal knows it.
type style string

const (
	strong style = "1"
	faint  style = "2"
	red    style = "1;31"
	green  style = "32"
	blue   style = "36"
)

// screen prints whole lines, with colours where they are wanted.
type screen struct {
	mu      sync.Mutex
	w       io.Writer
	colours bool
	ended   bool
	chapter int
}

// newScreen uses colours on a terminal, unless the environment is against it.
func newScreen(w *os.File, getenv func(string) string) *screen {
	_, err := unix.IoctlGetTermios(int(w.Fd()), unix.TCGETS)
	plain := err != nil || getenv("NO_COLOR") != "" || getenv("TERM") == "dumb"
	return &screen{w: w, colours: !plain}
}

// Write prints, until the screen has ended.
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

// paint gives a text a style.
func (s *screen) paint(st style, text string) string {
	if !s.colours {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// head begins a chapter.
func (s *screen) head(title string) {
	s.chapter++
	fmt.Fprintf(s, "\n  %s  %s\n\n", s.paint(blue, fmt.Sprint(s.chapter)), s.paint(strong, title))
}

// say prints a line.
func (s *screen) say(format string, args ...any) {
	line := strings.TrimRight(fmt.Sprintf("     "+format, args...), " ")
	fmt.Fprintln(s, line)
}

// note prints a faint line.
func (s *screen) note(format string, args ...any) {
	s.say("%s", s.paint(faint, fmt.Sprintf(format, args...)))
}

// pass prints what went as it should.
func (s *screen) pass(format string, args ...any) {
	fmt.Fprintf(s, "   %s %s\n", s.paint(green, "✓"), fmt.Sprintf(format, args...))
}

// bar draws n of most, at most width wide, padded to width.
func bar(n, most, width int) string {
	const eighths = "▏▎▍▌▋▊▉"
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

// count prints a number with its thousands apart.
func count(n int) string {
	digits := fmt.Sprint(n)
	var b bytes.Buffer
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
