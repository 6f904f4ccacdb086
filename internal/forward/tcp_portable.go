package forward

import (
	"net/netip"
	"syscall"
)

// portableTCP is the TCP half of portable.
type portableTCP struct{ engine *Engine }

func (t *portableTCP) init(e *Engine) { t.engine = e }

func (t *portableTCP) start() {}

func (t *portableTCP) end() {}

func (t *portableTCP) left(*Balancer, []netip.AddrPort) {}

func (t *portableTCP) listen(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }
