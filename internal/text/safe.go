package text

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Safe returns a writer that writes to w only text that a terminal shows. It keeps line ends, tabs and all graphic
// characters. Other characters, such as the beginning of an escape sequence or a change of the direction of writing,
// become \uXXXX, which means the same in JSON. Bytes that are not UTF-8 become U+FFFD.
func Safe(w io.Writer) io.Writer { return &safe{to: w} }

type safe struct {
	to   io.Writer
	rest []byte // the beginning of a character
}

func (s *safe) Write(p []byte) (int, error) {
	in := append(s.rest, p...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		if c := in[0]; c == '\n' || c == '\t' || ' ' <= c && c <= '~' { // most are
			out, in = append(out, c), in[1:]
			continue
		}
		if !utf8.FullRune(in) {
			break
		}
		r, size := utf8.DecodeRune(in)
		out = appendSafe(out, r)
		in = in[size:]
	}
	s.rest = append([]byte(nil), in...)
	if _, err := s.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func appendSafe(out []byte, r rune) []byte {
	if unicode.IsGraphic(r) {
		return utf8.AppendRune(out, r)
	}
	for _, unit := range utf16.AppendRune(nil, r) {
		out = fmt.Appendf(out, `\u%04x`, unit)
	}
	return out
}
