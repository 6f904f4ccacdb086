//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// sequence combines steps to one. The first step that fails ends it.
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

// uninterrupted makes a client connect continuously while the steps run, starting before the
// first one. Any backend may answer, but no connection may fail.
func uninterrupted(from, to string, steps ...step) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		p := &prober{stop: make(chan struct{}), ended: make(chan struct{})}
		go p.run(client, probe)
		p.await(1) // a failure is reported below, in p.err
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

// uninterruptedByRestart is uninterrupted for steps that restart the proxy. In mode userspace a restart ends
// connections.
func uninterruptedByRestart(from, to string, steps ...step) step {
	return when(inUserspaceMode, steps...).otherwise(uninterrupted(from, to, steps...))
}

// prober makes one connection after another.
type prober struct {
	stop     chan struct{} // closed to stop the prober
	answered atomic.Int64  // connections
	ended    chan struct{} // closed when it has ended
	err      error         // valid once ended is closed
}

// run connects until stop is closed, or a connection fails.
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

// connections waits until the client of each surrounding uninterrupted step has made n more connections, or has failed.
func connections(n int64) step {
	return func(e *env) error {
		for _, p := range e.probers {
			p.await(n)
		}
		return nil
	}
}

// dropNew makes a pod drop new TCP connections without an answer, as if it were gone; open connections may end
// normally. It first waits for the connections that clients have already started.
func dropNew(pod string) step {
	return func(e *env) error {
		if err := connections(1)(e); err != nil {
			return err
		}
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		e.alters("a pod that drops packets")
		h.Nft("table inet gone { chain input { type filter hook input priority 0; tcp flags & (syn | ack) == syn drop; }; }")
		return nil
	}
}
