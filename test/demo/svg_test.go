//go:build linux

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A recorder passes everything on, and records whole lines with the time of their end.
func TestRecorderRecordsLines(t *testing.T) {
	var out bytes.Buffer
	start := time.Unix(1000, 0)
	now := start
	r := &recorder{w: &out, now: func() time.Time { return now }}
	for _, text := range []string{"\n  one\ntw", "o\n", "three"} {
		fmt.Fprint(r, text)
		now = now.Add(time.Second)
	}
	want := []timedLine{{start, ""}, {start, "  one"}, {start.Add(time.Second), "two"}}
	if !reflect.DeepEqual(r.lines, want) || out.String() != "\n  one\ntwo\nthree" {
		t.Errorf("passed on %q, recorded\n%v, want\n%v", &out, r.lines, want)
	}
}

// recording returns the output of a screen in three chapters, with a second for each print.
func recording() []timedLine {
	now := time.Unix(1000, 0)
	s := &screen{w: io.Discard}
	r := s.record(func() time.Time { return now })
	after := func(f func(string, ...any), format string, args ...any) {
		now = now.Add(time.Second)
		f(format, args...)
	}
	after(s.note, "title")
	after(s.head, "First")
	after(s.pass, `%s lost & <found> "0"`, s.paint(strong, "12"))
	after(s.head, "Second")
	after(s.say, "hidden")
	now = now.Add(time.Minute)
	after(s.head, "Third")
	after(s.say, "%s%5d  %s", s.paint(green, bar(3, 7)), 3, s.paint(red, "✗ red"))
	after(s.say, "")
	return r.lines
}

func TestChooseKeepsTitleAndChapters(t *testing.T) {
	var got []string
	for _, l := range choose(recording(), []string{"1", "3"}) {
		got = append(got, regexp.MustCompile(`\x1b\[[\d;]*m`).ReplaceAllString(l.text, ""))
	}
	want := []string{
		"     title", "", "  1  First", "", `   ✓ 12 lost & <found> "0"`,
		"", "  3  Third", "", "     ███▍        3  ✗ red",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("chose\n%q, want\n%q", got, want)
	}
}

// Gaps stay as recorded within their bounds, and each chapter begins after the longest.
func TestPaceBoundsGaps(t *testing.T) {
	start := time.Unix(1000, 0)
	head := "  \x1b[36m2\x1b[0m  \x1b[1mSecond\x1b[0m"
	var lines []timedLine
	for _, l := range []struct {
		millis int
		text   string
	}{{0, "a"}, {1, "b"}, {1001, "c"}, {61001, "d"}, {61001, ""}, {61002, head}, {61003, ""}} {
		lines = append(lines, timedLine{start.Add(time.Duration(l.millis) * time.Millisecond), l.text})
	}
	var got []int64
	for _, at := range pace(lines) {
		got = append(got, at.Milliseconds())
	}
	if want := []int64{0, 350, 1350, 2850, 2850, 4350, 4350}; !reflect.DeepEqual(got, want) {
		t.Errorf("lines appear at %v, want %v", got, want)
	}
}

func TestSVGHasTheLinesInTheirColumns(t *testing.T) {
	lines := choose(recording(), []string{"1", "3"})
	got := linesOf(t, drawSVG(lines))
	var want []string
	for _, l := range lines {
		want = append(want, regexp.MustCompile(`\x1b\[[\d;]*m`).ReplaceAllString(l.text, ""))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the SVG shows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The animation steps forward to the end and repeats. Without it the end is shown.
func TestSVGRepeats(t *testing.T) {
	var lines []timedLine
	for i := range rows + 3 {
		lines = append(lines, timedLine{time.Unix(int64(i), 0), "line"})
	}
	svg := drawSVG(lines)
	end := map[string]int{"scroll": -3 * lineHeight, "cover": (rows + 3) * lineHeight}
	for class, want := range end {
		if !strings.Contains(svg, "."+class+" { animation: "+class+" 34.0s step-end infinite }") {
			t.Errorf("%s does not repeat", class)
		}
		_, frames, _ := strings.Cut(svg, "@keyframes "+class+" {")
		frames, _, _ = strings.Cut(frames, "\n}")
		percent, offset := -1.0, 0
		frame := regexp.MustCompile(`([\d.]+)% { transform: translateY\((-?\d+)px\) }`)
		for _, m := range frame.FindAllStringSubmatch(frames, -1) {
			next, _ := strconv.ParseFloat(m[1], 64) // digits
			if next <= percent || percent < 0 && next != 0 {
				t.Errorf("%s: %v%% follows %v%%", class, next, percent)
			}
			percent = next
			offset, _ = strconv.Atoi(m[2])
		}
		if percent != 100 || offset != want {
			t.Errorf("%s ends at %v%% with %d, want 100%% with %d", class, percent, offset, want)
		}
		still := fmt.Sprintf(`class="%s"`, class)
		if !regexp.MustCompile(still + fmt.Sprintf(`[^>]*transform="translate\(0 %d\)"`, want)).MatchString(svg) {
			t.Errorf("%s does not show the end without animation", class)
		}
	}
	if !strings.Contains(svg, "@media (prefers-reduced-motion: reduce) { .scroll, .cover { animation: none } }") {
		t.Error("the animation cannot be off")
	}
}

// The animation in docs is of this program, has no failed check, and loads nothing.
func TestCommittedSVG(t *testing.T) {
	text, err := os.ReadFile("../../docs/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(linesOf(t, string(text)), "\n")
	for _, part := range []string{
		"\n  1  Take over", "\n  15  Repair", "✓ Everything above was shown and measured in this run",
	} {
		if !strings.Contains(all, part) {
			t.Errorf("it does not show %q", part)
		}
	}
	rest := strings.Replace(string(text), "http://www.w3.org/2000/svg", "", 1)
	for _, bad := range []string{"✗", "http", "href", "url(", "@import", "<script"} {
		if strings.Contains(rest, bad) {
			t.Errorf("it has %q", bad)
		}
	}
	if !strings.Contains(rest, "\n"+sheet+"</style>") || len(text) > 100_000 {
		t.Errorf("%d bytes, or other styles: make it again with bin/sluice-demo -svg docs/demo.svg", len(text))
	}
}

// linesOf returns the lines that an SVG shows, and verifies their places. It must be well-formed.
func linesOf(t *testing.T, svg string) []string {
	t.Helper()
	var lines []string
	var x, length float64
	row, inText := 0, false
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if inText = token.Name.Local == "text"; inText {
				x, length = number(t, token, "x")/cellWidth, number(t, token, "textLength")/cellWidth
				row = int(number(t, token, "y")-baseline) / lineHeight
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if !inText {
				continue
			}
			lines = append(lines, make([]string, max(0, row+1-len(lines)))...)
			column, n := int(math.Round(x)), utf8.RuneCount(token)
			if int(math.Round(length)) != n || column < utf8.RuneCountInString(lines[row]) {
				t.Errorf("row %d: %q has the width %v at column %d, after %q", row, token, length, column, lines[row])
			}
			lines[row] = fmt.Sprintf("%-*s", column, lines[row]) + string(token)
		}
	}
}

func number(t *testing.T, e xml.StartElement, attribute string) float64 {
	t.Helper()
	for _, a := range e.Attr {
		if a.Name.Local == attribute {
			n, err := strconv.ParseFloat(a.Value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%v has no %s", e, attribute)
	return 0
}
