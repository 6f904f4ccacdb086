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

// Join writes a list with a separator between its values.
func Join[T fmt.Stringer](list []T, separator string) string {
	return strings.Join(Strings(list), separator)
}

// Strings returns the values of a list as text.
func Strings[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}

// Alternatives returns "a, b or c".
func Alternatives[T ~string](list []T) string {
	var out strings.Builder
	for i, v := range list {
		switch {
		case i == 0:
		case i == len(list)-1:
			out.WriteString(" or ")
		default:
			out.WriteString(", ")
		}
		out.WriteString(string(v))
	}
	return out.String()
}
