package forward

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/datagram"
)

// Limits of ICMP errors, for each loop. The kernel's limit (icmp_msgs_per_sec) does not apply to raw sockets.
const (
	refusalsPerSecond = 1000
	refusalsAtOnce    = 50
)

// refuser sends ICMP errors to clients, not too many.
type refuser struct {
	allowed float64
	last    time.Time
}

// send sends a client the error that its datagram of a length to a port was refused.
func (r *refuser) send(raw *datagram.Refuser, p *datagram.Path, port uint16, length int, now time.Time) bool {
	if raw == nil {
		return false
	}
	r.allowed = min(refusalsAtOnce, r.allowed+now.Sub(r.last).Seconds()*refusalsPerSecond)
	r.last = now
	if r.allowed < 1 {
		return false
	}
	r.allowed--
	return raw.Refuse(p, port, length) == nil
}
