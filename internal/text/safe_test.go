package text

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestSafe(t *testing.T) {
	for s, want := range map[string]string{
		"":                              "",
		"a\tb\nc größer 日本 ✓ e\u0301":   "a\tb\nc größer 日本 ✓ e\u0301",
		"\x1b[2J\x1b]0;title\a\r\b\x7f": `\u001b[2J\u001b]0;title\u0007\u000d\u0008\u007f`,
		"\u009b2J":                      `\u009b2J`, // the same in one character
		"a\u202eb\u2066c\u200b\ufeff":   `a\u202eb\u2066c\u200b\ufeff`,
		"\U000e0041":                    `\udb40\udc41`,  // a tag, which is invisible
		"\xff\xc3(":                     "\ufffd\ufffd(", // not UTF-8
		"\u00a0":                        "\u00a0",
	} {
		for _, size := range []int{1, 2, 1000} {
			var b strings.Builder
			w := Safe(&b)
			for rest := s; rest != ""; {
				n := min(size, len(rest))
				if got, err := io.WriteString(w, rest[:n]); err != nil || got != n {
					t.Fatalf("%d, %v", got, err)
				}
				rest = rest[n:]
			}
			if b.String() != want {
				t.Errorf("%q in pieces of %d is written as %q, want %q", s, size, b.String(), want)
			}
		}
	}
}

// JSON keeps its meaning.
func TestSafeKeepsJSON(t *testing.T) {
	const value = "\u009b\u202e\U000e0041\u007f"
	var b strings.Builder
	if _, err := io.WriteString(Safe(&b), `"`+value+`"`); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got != value {
		t.Errorf("%s means %q, %v, want %q", b.String(), got, err, value)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestSafeReturnsErrors(t *testing.T) {
	if _, err := Safe(broken{}).Write([]byte("x")); err == nil {
		t.Error("no error")
	}
}

func TestShort(t *testing.T) {
	long := strings.Repeat("x", 63) + "ä"
	for s, want := range map[string]string{
		"v1.2.0": "v1.2.0", "a\nb": "a b", strings.Repeat("x", 64): strings.Repeat("x", 64),
		long: strings.Repeat("x", 63) + "...",
	} {
		if got := Short(s); got != want {
			t.Errorf("Short(%q) = %q, want %q", s, got, want)
		}
	}
}

func BenchmarkSafe(b *testing.B) {
	p := []byte(strings.Repeat("namespace/name 10.96.0.1 80/tcp programmed\n", 1000))
	b.SetBytes(int64(len(p)))
	w := Safe(io.Discard)
	for b.Loop() {
		if _, err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}
