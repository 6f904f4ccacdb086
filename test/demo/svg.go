//go:build linux

package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// recorder forwards the output, and records when each line was complete.
type recorder struct {
	w     io.Writer
	now   func() time.Time
	part  string // of a line
	lines []timedLine
}

// timedLine is a line of the screen, with the codes of its styles.
type timedLine struct {
	at   time.Time
	text string
}

// Write implements io.Writer.
func (r *recorder) Write(b []byte) (int, error) {
	texts := strings.Split(r.part+string(b), "\n")
	last := len(texts) - 1
	for _, text := range texts[:last] {
		r.lines = append(r.lines, timedLine{r.now(), text})
	}
	r.part = texts[last]
	return r.w.Write(b)
}

// chapterOf returns the number of the chapter that a line begins, or "".
func chapterOf(line string) string {
	if m := regexp.MustCompile(`^  \x1b\[36m(\d+)\x1b\[0m  `).FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}

// choose returns the lines before the first chapter, and the lines of the chapters with the given numbers, without
// empty lines at the end.
func choose(lines []timedLine, chapters []string) []timedLine {
	var chosen []timedLine
	chapter := ""
	for _, l := range lines {
		if n := chapterOf(l.text); n != "" {
			chapter = n
		}
		if chapter == "" || slices.Contains(chapters, chapter) {
			chosen = append(chosen, l)
		}
	}
	for len(chosen) > 0 && chosen[len(chosen)-1].text == "" {
		chosen = chosen[:len(chosen)-1]
	}
	return chosen
}

// Bounds of the time between two lines of the animation, and how long the last one stays.
const (
	shortestGap = 350 * time.Millisecond
	longestGap  = 1500 * time.Millisecond
	lastGap     = 8 * time.Second
)

// pace returns when each line appears: as recorded, within the bounds. A chapter begins after the longest
// gap, and an empty line appears together with the line before it.
func pace(lines []timedLine) []time.Duration {
	times := make([]time.Duration, len(lines))
	for i := 1; i < len(lines); i++ {
		gap := min(max(lines[i].at.Sub(lines[i-1].at), shortestGap), longestGap)
		switch {
		case lines[i].text == "":
			gap = 0
		case chapterOf(lines[i].text) != "":
			gap = longestGap
		}
		times[i] = times[i-1] + gap
	}
	return times
}

// piece is a text in one style, without wide gaps, so that columns are right in every font.
type piece struct {
	column      int
	style, text string
}

// pieces splits a line at codes of styles and at gaps of two or more blanks.
func pieces(line string) []piece {
	var out []piece
	words := regexp.MustCompile(`\S+( \S+)*`)
	column, st := 0, ""
	for i, part := range strings.Split(line, "\x1b[") {
		if i > 0 {
			st, part, _ = strings.Cut(part, "m")
		}
		for _, at := range words.FindAllStringIndex(part, -1) {
			before := utf8.RuneCountInString(part[:at[0]])
			out = append(out, piece{column + before, st, part[at[0]:at[1]]})
		}
		column += utf8.RuneCountInString(part)
	}
	return out
}

// Sizes of the animation, in pixels. It shows the last rows.
const (
	cellWidth  = 8.4
	lineHeight = 19
	baseline   = 14
	margin     = 16
	rows       = 24
)

// sheet has the colours of the styles. Without animation the end of the recording is shown.
const sheet = `text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, ` +
	`"DejaVu Sans Mono", monospace; fill: #d1d7e0 }
rect { fill: #151b23 }
.s1 { font-weight: bold; fill: #ffffff }
.s2 { fill: #9198a1 }
.s1-31 { font-weight: bold; fill: #ff7b72 }
.s32 { fill: #56d364 }
.s36 { fill: #76e3ea }
@media (prefers-reduced-motion: reduce) { .scroll, .cover { animation: none } }
`

// drawSVG returns an animation of one or more lines, which repeats forever. All lines are drawn once, one below the
// other, in a group that scrolls; a cover over the lines that have not appeared yet moves down.
func drawSVG(lines []timedLine) string {
	times := pace(lines)
	texts, columns := drawLines(lines)
	width, height := columns*cellWidth, rows*lineHeight
	var out strings.Builder
	fmt.Fprintf(&out,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n",
		width+2*margin, height+2*margin, width+2*margin, height+2*margin)
	fmt.Fprintf(&out, "<title>A recorded run of the demo</title>\n<style>\n%s%s%s</style>\n",
		keyframes("scroll", times, func(n int) int { return -scrolled(n) }),
		keyframes("cover", times, func(n int) int { return n * lineHeight }), sheet)
	fmt.Fprintf(&out,
		`<rect width="100%%" height="100%%" rx="8"/>`+"\n"+`<svg x="%d" y="%d" width="%.1f" height="%d">`+"\n",
		margin, margin, width, height)
	fmt.Fprintf(&out, `<g class="scroll" transform="translate(0 %d)">`+"\n%s", -scrolled(len(lines)), texts)
	fmt.Fprintf(&out,
		`<rect class="cover" width="100%%" height="%d" transform="translate(0 %d)"/>`+"\n</g>\n</svg>\n</svg>\n",
		height, len(lines)*lineHeight)
	return out.String()
}

// drawLines returns the texts of lines, and the number of their columns.
func drawLines(lines []timedLine) (string, float64) {
	columns := 0
	var out strings.Builder
	for i, l := range lines {
		for _, p := range pieces(l.text) {
			n := utf8.RuneCountInString(p.text)
			columns = max(columns, p.column+n)
			fmt.Fprintf(&out, `<text x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs" class="s%s">`,
				float64(p.column)*cellWidth, i*lineHeight+baseline, float64(n)*cellWidth, strings.ReplaceAll(p.style, ";", "-"))
			_ = xml.EscapeText(&out, []byte(p.text)) // a Builder returns no error
			out.WriteString("</text>\n")
		}
	}
	return out.String(), float64(columns)
}

// scrolled returns by how many pixels the first line is above the top when a number of lines has appeared.
func scrolled(lines int) int { return max(0, lines-rows) * lineHeight }

// keyframes returns the animation of a class. At each time it steps to the offset for the number of lines.
func keyframes(class string, times []time.Duration, offset func(lines int) int) string {
	last := len(times) - 1
	total := times[last] + lastGap
	var out strings.Builder
	fmt.Fprintf(&out, ".%s { animation: %s %.1fs step-end infinite }\n@keyframes %s {\n",
		class, class, total.Seconds(), class)
	for i, at := range times {
		if i == last || times[i+1] != at { // otherwise together with the next line
			fmt.Fprintf(&out, "%.2f%% { transform: translateY(%dpx) }\n", 100*at.Seconds()/total.Seconds(), offset(i+1))
		}
	}
	fmt.Fprintf(&out, "100%% { transform: translateY(%dpx) }\n}\n", offset(last+1))
	return out.String()
}
