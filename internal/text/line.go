package text

import (
	"strings"
	"unicode"
)

// Line makes what somebody else wrote fit into a line: what would end or move it
// becomes a blank.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
