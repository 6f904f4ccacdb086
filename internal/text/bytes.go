package text

import (
	"strconv"
	"strings"
)

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
