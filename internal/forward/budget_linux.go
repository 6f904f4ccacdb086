package forward

import "time"

// Limits of ICMP errors, for each loop. The kernel's limit (icmp_msgs_per_sec) does not apply to raw
// sockets.
const (
	refusalsPerSecond = 1000
	refusalsAtOnce    = 50
)

// budget limits how many ICMP errors are sent.
type budget struct {
	left float64
	last time.Time
}

// take reports whether one more may be sent.
func (b *budget) take(now time.Time) bool {
	b.left = min(refusalsAtOnce, b.left+now.Sub(b.last).Seconds()*refusalsPerSecond)
	b.last = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
