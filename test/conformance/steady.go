//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// sequence makes one step of several. The first step that fails ends it.
func sequence(steps ...step) step {
	return func(e *env) error {
		for _, s := range steps {
			if err := s(e); err != nil {
				return err
			}
		}
		return nil
	}
}

// uninterrupted has a client connect again and again while the steps run, beginning before
// the first step. Each connection must be answered, by any backend.
func uninterrupted(from, to string, steps ...step) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		p := &prober{stop: make(chan struct{}), ended: make(chan struct{})}
		go p.run(client, probe)
		p.await(1) // if it fails, err has the reason
		e.probers = append(e.probers, p)
		err = sequence(steps...)(e)
		e.probers = e.probers[:len(e.probers)-1]
		close(p.stop)
		<-p.ended
		if p.err != nil {
			err = errors.Join(err, fmt.Errorf("%s to %s: %w", from, to, p.err))
		}
		return err
	}
}

// prober makes one connection after the other.
type prober struct {
	stop     chan struct{} // closed to end it
	answered atomic.Int64  // connections
	ended    chan struct{} // closed when it has ended
	err      error         // valid once ended is closed
}

// run connects until over is closed, and ends at the first connection that fails.
func (p *prober) run(client *lab.Host, probe lab.Probe) {
	defer close(p.ended)
	for {
		select {
		case <-p.stop:
			if p.answered.Load() == 0 {
				p.err = errors.New("never connected")
			}
			return
		case <-time.After(time.Millisecond):
		}
		if r := client.Try(probe); r.Outcome != lab.Answered {
			p.err = fmt.Errorf("%s after %d connections that were answered", r, p.answered.Load())
			return
		}
		p.answered.Add(1)
	}
}

// await returns after n more connections, or when the prober has ended.
func (p *prober) await(n int64) {
	for want := p.answered.Load() + n; p.answered.Load() < want; time.Sleep(time.Millisecond) {
		select {
		case <-p.ended:
			return
		default:
		}
	}
}

// connections waits until the client of each surrounding unbroken has made n more
// connections, or failed to.
func connections(n int64) step {
	return func(e *env) error {
		for _, p := range e.probers {
			p.await(n)
		}
		return nil
	}
}

// dropNew makes a pod drop new TCP connections silently, as if it were gone; its
// open connections may end. Connections that clients began before are answered first.
func dropNew(pod string) step {
	return func(e *env) error {
		if err := connections(1)(e); err != nil {
			return err
		}
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		h.Nft("table inet gone { chain input { type filter hook input priority 0; tcp flags & (syn | ack) == syn drop; }; }")
		return nil
	}
}
