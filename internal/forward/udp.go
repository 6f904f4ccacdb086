package forward

import (
	"errors"
	"syscall"
	"time"
)

// udp is what the UDP listeners of an Engine share.
type udp struct {
	timeout  time.Duration
	attempts int
	shares   *shares
	count    func(reason string) // counts a refused flow
}

// idleFraction is the part of the timeout after which a flow may end for a new one of another client.
const idleFraction = 16

func newUDP(o Options, count func(reason string)) *udp {
	return &udp{
		timeout: o.UDPTimeout, attempts: len(o.Attempts), count: count,
		shares: newShares(o.MaxFlows, int64(o.UDPTimeout/idleFraction)),
	}
}

// refused counts a flow that was refused because something is exhausted.
func (u *udp) refused(b *Balancer, reason string) {
	b.counts.refused.Add(1)
	u.count(reason)
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
