package forward

import (
	"errors"
	"syscall"
	"time"
)

// udp is what the UDP listeners of an Engine share.
type udp struct {
	engine   *Engine
	start    time.Time
	timeout  time.Duration
	attempts int
	shares   *shares
}

// idleFraction is the part of the timeout after which a flow may end for a new one of another client.
const idleFraction = 16

func newUDP(e *Engine) *udp {
	o := e.options
	return &udp{
		engine: e, start: time.Now(), timeout: o.UDPTimeout, attempts: len(o.Attempts),
		shares: newShares(&e.flows, int64(o.UDPTimeout/idleFraction)),
	}
}

// shortage returns the reason if an error means that this host has run out of something; "": it
// does not.
func shortage(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOSPC):
		return reasonFiles
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EADDRINUSE):
		return reasonPorts
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOBUFS):
		return reasonMemory
	}
	return ""
}
