package relay

import (
	"net/netip"
	"slices"
)

// choice has the backend of a flow, and the backends that it tried before.
type choice struct {
	settings *settings
	client   netip.Addr
	pool     int
	backend  netip.AddrPort
	plan     *plan            // the last one that was seen to have the backend
	tried    []netip.AddrPort // backends that have refused the flow
	replied  bool             // the backend has sent a datagram
	refused  bool             // the backend has refused the flow, which must have another one
}

// next chooses a backend. It returns false if there is none.
func (c *choice) next() (netip.AddrPort, bool) {
	b := c.settings.balancer
	to, ok := b.pick(c.client, c.pool, c.tried)
	if !ok {
		b.counts.failures.Add(1)
		return to, false
	}
	if slices.Contains(c.tried, to) { // all have refused: start again
		b.counts.failures.Add(1)
		c.tried = nil
	} else if len(c.tried) > 0 {
		b.counts.retries.Add(1)
	}
	return to, true
}

// connected records that the flow has a socket to a backend.
func (c *choice) connected(to netip.AddrPort) {
	c.backend, c.plan, c.refused = to, nil, false
	c.settings.balancer.reached(to)
}

// disconnected records that the socket is closed.
func (c *choice) disconnected() { c.settings.balancer.ended(c.backend) }

// failed records that there is no way to a backend.
func (c *choice) failed(to netip.AddrPort) {
	c.settings.balancer.failed(c.client, to)
	c.tried = append(c.tried, to)
}

// onRefusal records that the backend has refused a datagram. If it has never replied, the flow moves to
// another one with its next datagram.
func (c *choice) onRefusal() {
	if c.refused {
		return
	}
	if c.replied {
		c.settings.balancer.failed(c.client, c.backend)
		return
	}
	c.failed(c.backend)
	c.refused = true
}

// current reports whether the flow may keep its backend. While nothing has changed, that costs two comparisons.
func (c *choice) current(s *settings) bool {
	if s != c.settings {
		admission := s.admission(c.client)
		if admission.Refused || s.balancer != c.settings.balancer {
			return false
		}
		c.settings, c.pool = s, admission.Pool
	}
	p := s.balancer.plan.Load()
	if p != c.plan && p.listed[c.backend] == nil {
		return false
	}
	c.plan = p
	return true
}
