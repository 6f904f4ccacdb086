package text

import (
	"strings"
	"unicode"
)

// Line returns text of another program on one line: it replaces characters that end or move a line by spaces.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// Short is Line for a word or two: it cuts off the text after 64 bytes.
func Short(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return Line(s)
}
