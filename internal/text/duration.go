package text

import (
	"fmt"
	"strings"
	"time"
)

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
