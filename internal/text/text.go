// Package text formats text for people, for several packages alike.
package text

import (
	"fmt"
	"strings"
)

// Count is a number of things in words: "1 rule", "2 rules", "2 addresses".
func Count(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
