package forward

import (
	"net/netip"
	"slices"
)

// choice is the backend of a flow, and those that were tried before.
type choice struct {
	settings *settings
	client   netip.Addr
	pool     int
	backend  netip.AddrPort
	target   *Target          // the last one that was seen to have the backend
	tried    []netip.AddrPort // backends that have refused the flow
	replied  bool             // the backend has sent a datagram
	refused  bool             // the backend has refused the flow, which must have another one
}

// next chooses a backend. It returns false if there is none.
func (c *choice) next() (netip.AddrPort, *Target, bool) {
	b := c.settings.balancer
	target := b.target.Load()
	to, ok := b.pick(c.client, c.pool, c.tried)
	if !ok {
		b.counts.failures.Add(1)
		return to, target, false
	}
	if slices.Contains(c.tried, to) { // all have refused: start again
		b.counts.failures.Add(1)
		c.tried = nil
	} else if len(c.tried) > 0 {
		b.counts.retries.Add(1)
	}
	return to, target, true
}

// connected records that the flow has a socket to a backend.
func (c *choice) connected(to netip.AddrPort, target *Target) {
	c.backend, c.target, c.refused = to, target, false
	c.settings.balancer.reached(c.client, to)
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

// has reports whether a backend is in a pool of the target.
func (t *Target) has(backend netip.AddrPort) bool {
	for _, pool := range t.Pools {
		for i := range pool {
			if pool[i].Addr == backend {
				return true
			}
		}
	}
	return false
}

// set returns the backends of all pools.
func (t *Target) set() map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, pool := range t.Pools {
		for i := range pool {
			all[pool[i].Addr] = true
		}
	}
	return all
}

// current reports whether the flow may go on with its backend. While nothing has changed, that costs
// two comparisons.
func (c *choice) current(s *settings, has func(*Target, netip.AddrPort) bool) bool {
	if s != c.settings {
		admission := s.admission(c.client)
		if admission.Refused || s.balancer != c.settings.balancer {
			return false
		}
		c.settings, c.pool = s, admission.Pool
	}
	target := s.balancer.target.Load()
	if target == c.target {
		return true
	}
	if !has(target, c.backend) {
		return false
	}
	c.target = target
	return true
}
