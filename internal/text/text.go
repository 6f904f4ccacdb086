// Package text formats text for people, for several packages alike.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
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

// Bytes is a number of bytes in words: "1 byte", "512 bytes", "1.5 MiB".
func Bytes(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return Count(int(n), "byte")
	}
	value, name := float64(n)/unit, "KiB"
	for _, larger := range []string{"MiB", "GiB", "TiB"} {
		if value < unit {
			break
		}
		value, name = value/unit, larger
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + name
}

// Duration rounds a duration to about three digits: "850µs", "3m12s", "3h", "5d3h".
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	unit := time.Second
	switch {
	case d < 10*time.Millisecond:
		unit = 10 * time.Microsecond
	case d < time.Second:
		unit = time.Millisecond
	case d < 10*time.Second:
		unit = 100 * time.Millisecond
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		d, unit = d.Truncate(time.Minute), time.Minute
	}
	s := d.Round(unit).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-len("0s")]
		}
	}
	return s
}
