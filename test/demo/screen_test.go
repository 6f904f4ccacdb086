//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		n, most int
		want    string
	}{
		{0, 10, "        "},
		{5, 0, "        "},
		{10, 10, "████████"},
		{5, 10, "████    "},
		{1, 32, "▎       "},
		{1, 1000, "▏       "}, // 1 is never drawn as 0
	} {
		if got := bar(c.n, c.most); got != c.want {
			t.Errorf("bar(%d, %d) = %q, want %q", c.n, c.most, got, c.want)
		}
	}
	for n := range 1001 {
		if w := utf8.RuneCountInString(bar(n, 1000)); w != 8 {
			t.Fatalf("bar(%d) is %d wide", n, w)
		}
	}
}

func TestClip(t *testing.T) {
	long := strings.Repeat("ä", width)
	if got := clip(long); got != long {
		t.Errorf("%q was cut off", got)
	}
	if got := clip(long + "b"); utf8.RuneCountInString(got) != width || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%q has another width", got)
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		count(0):                          "0",
		count(999):                        "999",
		count(1000):                       "1,000",
		count(1234567):                    "1,234,567",
		micros(1499 * time.Nanosecond):    "1 µs",
		micros(-2 * time.Microsecond):     "-2 µs",
		millis(340 * time.Microsecond):    "0.3 ms",
		millis(9940 * time.Microsecond):   "9.9 ms",
		millis(10 * time.Millisecond):     "10 ms",
		millis(1234500 * time.Nanosecond): "1.2 ms",
		millis(1200 * time.Millisecond):   "1,200 ms",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A file gets no escape codes, and no line ends in blanks.
func TestPlainScreen(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	s := newScreen(file, func(string) string { return "" })
	s.head("Title %d", 2)
	s.say("%-20s", "text")
	s.note("note %d", 1)
	s.pass("done %s", s.paint(strong, "well"))
	s.end("bye")
	s.say("after the end")
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := "\n  1  Title 2\n\n     text\n     note 1\n   ✓ done well\n\n\n  bye\n"
	if string(got) != want {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
}

func TestColours(t *testing.T) {
	var b bytes.Buffer
	s := &screen{w: &b, colours: true}
	s.pass("fine")
	if got := b.String(); got != "   \x1b[32m✓\x1b[0m fine\n" {
		t.Errorf("%q", got)
	}
	for _, text := range []string{s.paint(red, "x"), s.paint(faint, "y")} {
		if !strings.HasSuffix(text, "\x1b[0m") {
			t.Errorf("%q leaves its colour on", text)
		}
	}
}
