package forward

import (
	"time"
)

// udp is what the UDP listeners of an Engine share.
type udp struct {
	engine   *Engine
	timeout  time.Duration
	attempts int
	shares   *shares
}

// idleFraction is the part of the timeout after which a flow may end for a new one of another client.
const idleFraction = 16

func newUDP(e *Engine) *udp {
	o := e.options
	return &udp{
		engine: e, timeout: o.UDPTimeout, attempts: len(o.Attempts),
		shares: newShares(&e.flows, int64(o.UDPTimeout/idleFraction)),
	}
}
