package text

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                 "0s",
		1234567 * time.Nanosecond:         "1.23ms",
		123456 * time.Microsecond:         "123ms",
		4321 * time.Millisecond:           "4.3s",
		192*time.Second + time.Nanosecond: "3m12s",
		25*time.Hour - time.Minute:        "1d0h",
		24*time.Hour - time.Minute:        "23h59m",
		3 * time.Hour:                     "3h", 90 * time.Second: "1m30s",
		time.Hour + time.Second: "1h", 5 * time.Minute: "5m",
		75*time.Hour + 59*time.Minute: "3d3h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d is %s, want %s", d, got, want)
		}
	}
}
