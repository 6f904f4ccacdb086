package forward

import (
	"net/netip"
	"syscall"
)

// tcpLoop is what the TCP listeners of a worker share.
type tcpLoop struct{ *worker }

func (t *tcpLoop) init(w *worker) { t.worker = w }

func (t *tcpLoop) end() {}

func (t *tcpLoop) left(*Balancer, []netip.AddrPort) {}

func (p *poller) listenTCP(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }
