//go:build linux

package harness

import (
	"fmt"
	"strings"
	"testing"
)

// Output may arrive in pieces of any length.
func TestLog(t *testing.T) {
	l := &Log{}
	for _, piece := range []string{"one\ntw", "o\n", "", "level=WARN msg=\"a b\" n=12"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("wrote %d: %v", n, err)
		}
	}
	if got := l.Lines("level=WARN"); len(got) != 0 {
		t.Errorf("an incomplete line was returned: %v", got)
	}
	fmt.Fprint(l, "3\nlast")
	lines := l.Lines("level=WARN", "msg=")
	if len(lines) != 1 || lines[0].Time.IsZero() {
		t.Fatalf("lines %v", lines)
	}
	for field, want := range map[string]string{"msg": "a b", "n": "123", "level": "WARN", "sg": "", "none": ""} {
		if got := lines[0].Field(field); got != want {
			t.Errorf("field %s is %q, want %q", field, got, want)
		}
	}
	const text = "one\ntwo\nlevel=WARN msg=\"a b\" n=123\nlast"
	if l.String() != text || l.End() != text || l.Size() != len(text) || l.Count("o") != 2 {
		t.Errorf("the log is %q with size %d", l, l.Size())
	}
}

// A log keeps the end of a long output, with or without line ends.
func TestLogIsBounded(t *testing.T) {
	for name, piece := range map[string]string{"lines": strings.Repeat("x", 99) + "\n", "one line": strings.Repeat("x", 100)} {
		l := &Log{}
		for range 3 * logLimit / 100 {
			fmt.Fprint(l, piece)
		}
		fmt.Fprint(l, "the end\n")
		if n := len(l.String()); n > 2*logLimit || n < logLimit/2 {
			t.Errorf("%s: the log keeps %d bytes", name, n)
		}
		if !strings.HasSuffix(l.String(), "the end\n") || l.Size() != 3*logLimit/100*100+8 {
			t.Errorf("%s: size %d, end %q", name, l.Size(), l.End())
		}
	}
}
