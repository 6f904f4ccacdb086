package relay

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// portable is the system of all others than Linux: goroutines over package net. It is built on
// Linux too, for its tests.
type portable struct {
	engine *Engine
	tcp    portableTCP
	udp    *udp
	loop   *plainUDP // of udp
}

func newPortable(e *Engine) *portable {
	p := &portable{engine: e, loop: newPlainUDP(e.options.NetNS)}
	p.tcp.init(p)
	p.udp = newUDP(e, p.loop)
	p.udp.add(p.loop)
	return p
}

// open calls a function that opens sockets in the network namespace of the Engine, which only tests on Linux set.
func (p *portable) open(open func() error) error { return netns.Do(p.engine.options.NetNS, open) }

func (p *portable) clock() int64 { return int64(time.Since(p.engine.start)) }

// listen implements system.
func (p *portable) listen(s Spec) (server, error) {
	if f := s.Inherited; f != nil {
		return nil, errors.Join(errNoHandover, f.Close())
	}
	switch s.Protocol {
	case TCP:
		return p.tcp.listen(s)
	case UDP:
		return p.udp.listen(s)
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
