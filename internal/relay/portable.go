package relay

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// portable is the system of all others than Linux: goroutines over package net. It is built on
// Linux too, for its tests.
type portable struct {
	engine *Engine
	udp    *udp
	loop   *plainUDP // of udp

	running chan struct{} // closed when connections of TCP may be accepted
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup // for the goroutines of TCP: one for each listener, and two for each connection

	mu      sync.Mutex
	servers map[*portableServer]struct{}
	conns   map[*portableConn]struct{}
}

func newPortable(e *Engine) *portable {
	p := &portable{
		engine: e, loop: newPlainUDP(e.options.NetNS), running: make(chan struct{}),
		servers: map[*portableServer]struct{}{}, conns: map[*portableConn]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.udp = &udp{engine: e, host: p.loop}
	p.udp.add(p.loop)
	return p
}

// open calls a function that opens sockets in the network namespace of the Engine, which only tests on Linux set.
func (p *portable) open(open func() error) error { return netns.Do(p.engine.options.NetNS, open) }

func (p *portable) clock() int64 { return int64(time.Since(p.engine.start)) }

func (p *portable) listen(s Spec) (server, error) {
	if f := s.Inherited; f != nil {
		return nil, errors.Join(errNoHandover, f.Close())
	}
	switch s.Protocol {
	case TCP:
		return p.listenTCP(s)
	case UDP:
		return p.udp.listen(s)
	}
	return nil, syscall.EPROTONOSUPPORT
}

func (p *portable) run(ctx context.Context) error {
	close(p.running)
	ended := context.AfterFunc(ctx, func() {
		p.loop.Post(func() {
			p.udp.loops[0].reset()
			p.loop.end()
		})
	})
	defer ended()
	p.loop.run()
	p.cancel()
	p.mu.Lock()
	for s := range p.servers {
		_ = s.listener.Close()
	}
	for c := range p.conns {
		c.abort()
	}
	p.mu.Unlock()
	p.wait.Wait()
	return nil
}

func (p *portable) left(b *Balancer, gone []netip.AddrPort) {
	p.udp.left(b)
	left := map[netip.AddrPort]bool{}
	for _, addr := range gone {
		left[addr] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.settings.balancer == b && left[c.backend] {
			c.drain()
		}
	}
}
