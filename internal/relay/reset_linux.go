package relay

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

// reset handles that the peer of a side has reset the connection. The bytes that it sent before still reach the other
// peer, which gets the reset after them, or after resetDelay.
func (c *conn) reset(by *side) {
	if c.state != open {
		c.abort()
		return
	}
	w := c.owner.worker
	c.state, c.gone, c.until = resetting, by, w.Now().Add(resetDelay)
	w.Set(&c.timer, c.until, c.abort)
	from, _ := c.directions(by)
	from.received(unix.EPOLLERR)
	if from.done {
		c.passReset()
		return
	}
	from.pump()
}

// whileResetting handles events of the side that is still there.
func (c *conn) whileResetting(s *side, events uint32) {
	from, _ := c.directions(c.gone)
	switch {
	case s == c.gone:
	case events&unix.EPOLLERR != 0:
		c.abort()
	case events&unix.EPOLLOUT != 0 && from.blocked:
		from.blocked = false
		from.pump()
	}
}

// passReset resets the other side once its peer has received everything. The kernel reports no event
// for that, so it looks again after as long as it has waited.
func (c *conn) passReset() {
	w := c.owner.worker
	from, _ := c.directions(c.gone)
	from.done = true
	if socket.Unsent(from.to.fd) == 0 || !w.Now().Before(c.until) {
		c.abort()
		return
	}
	began := c.until.Add(-resetDelay)
	pause := max(w.Now().Sub(began), time.Millisecond)
	at := w.Now().Add(pause)
	if at.After(c.until) {
		at = c.until
	}
	w.Set(&c.timer, at, c.passReset)
}
