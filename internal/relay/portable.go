package relay

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"
)

// portable is the system of all others than Linux: goroutines over package net. It is built on
// Linux too, for its tests.
type portable struct {
	engine *Engine
	tcp    portableTCP
	udp    *udp
	loop   *plainUDP // of udp
	open   opener
}

// opener calls a function that opens a socket. Tests use another network namespace.
type opener func(open func() error) error

func newPortable(e *Engine) *portable {
	p := &portable{engine: e, open: func(open func() error) error { return open() }}
	p.tcp.init(p)
	p.loop = newPlainUDP(func(open func() error) error { return p.open(open) })
	p.udp = newUDP(e, p.loop)
	p.udp.add(p.loop)
	return p
}

func (p *portable) clock() int64 { return int64(time.Since(p.engine.start)) }

// listen implements system.
func (p *portable) listen(l *Listener) (server, error) {
	if f := l.spec.Inherited; f != nil {
		return nil, errors.Join(errNoHandover, f.Close())
	}
	switch l.spec.Protocol {
	case TCP:
		return p.tcp.listen(l)
	case UDP:
		return p.udp.listen(l)
	}
	return nil, syscall.EPROTONOSUPPORT
}

// run implements system.
func (p *portable) run(ctx context.Context) error {
	p.tcp.start()
	ended := context.AfterFunc(ctx, func() {
		p.loop.Post(func() {
			p.udp.loops[0].reset()
			p.loop.end()
		})
	})
	defer ended()
	p.loop.run()
	p.tcp.end()
	return nil
}

// left implements system.
func (p *portable) left(b *Balancer, gone []netip.AddrPort) {
	p.tcp.left(b, gone)
	p.udp.left(b)
}
