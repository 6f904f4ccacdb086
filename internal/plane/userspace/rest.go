package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/forward"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// rest goes on with the connections of this mode while the node is in another one: conntrack leads their
// packets to the sockets as before.
type rest struct {
	setup    plane.Setup
	engine   *forward.Engine
	plane    *Plane // that plans nothing
	runner   *runner
	replaced <-chan struct{}
	over     chan struct{}
}

// goOn is Kind.GoOn for sockets at some addresses.
func goOn(s plane.Setup, addrs []netip.Addr, replaced <-chan struct{}) (*plane.Rest, error) {
	var from struct{ Range PortRange }
	if err := json.Unmarshal(s.Inherited.State, &from); err != nil {
		return nil, fmt.Errorf("read the sockets of the previous run: %w", err)
	}
	engine, err := newEngine(s)
	if err != nil {
		return nil, errors.Join(err, discard(s.Inherited))
	}
	r := &rest{
		setup: s, engine: engine, plane: New(EngineOf(engine), Options{Addrs: addrs, Ports: from.Range}),
		replaced: replaced, over: make(chan struct{}),
	}
	r.runner = newRunner(engine, r.plane)
	if err := r.plane.inherit(engine, s.Inherited, r.adopt); err != nil {
		return nil, errors.Join(err, engine.Discard())
	}
	return &plane.Rest{Run: r.run, HandOver: r.handOver, Over: r.over, Open: r.open}, nil
}

// adopt is the adoption of a rest: a socket that was closed stays so.
func (r *rest) adopt(s forward.Spec, h *forward.Handed) (*forward.Listener, error) {
	if h.Socket < 0 {
		return r.engine.Retired(s, h)
	}
	return listenAgain(r.engine)(s, h)
}

// handOver implements plane.Rest.HandOver. After the last connection there is nothing to hand over.
func (r *rest) handOver() func(context.Context) (*plane.Inherited, error) {
	select {
	case <-r.over:
		return func(context.Context) (*plane.Inherited, error) { return nil, nil }
	default:
		return r.runner.handOver()
	}
}

func (r *rest) open() int64 { return r.engine.Stats().Connections }

// run forwards until the last connection has ended, or the context.
func (r *rest) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.runner.run(ctx) })
	group.Go(func() error {
		defer stop()
		r.wait(ctx)
		return nil
	})
	return group.Wait()
}

// restPeriod is the time between two checks for open connections.
const restPeriod = time.Second

// wait closes the listening sockets once other rules have replaced those that point to them, and waits until the last
// connection has ended.
func (r *rest) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.replaced:
	}
	r.plane.sockets.retire()
	r.setup.Log.Info("Connections of another mode go on until they end", "mode", mode, "connections", r.open())
	ticker := time.NewTicker(restPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if r.open() == 0 {
			r.setup.Log.Info("The last connection of another mode has ended", "mode", mode)
			close(r.over)
			return
		}
	}
}

// retire closes all listening sockets. Their connections go on.
func (s *sockets) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.open {
		if l, is := l.(*forward.Listener); is {
			l.Retire()
		}
	}
}
