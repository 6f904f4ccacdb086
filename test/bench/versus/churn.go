//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// seenEvery is which share of the changes of a churn is looked for by
// connections: those of the probed Services.
const seenEvery = 10

// churner writes changes at a steady rate. The clock goes on when a write is
// slow, so that none waits for the one before.
type churner struct {
	*node
	group *errgroup.Group

	mu      sync.Mutex
	request []time.Duration
	seen    []time.Duration
	moving  map[int]movement // probed Services on their way
}

// movement is a change of a probed Service that no connection has seen yet.
type movement struct {
	began time.Time
	to    netip.Addr
}

// churn measures many changes a second, most of them of Services that nobody
// calls.
func (n *node) churn(r *result) error {
	n.quiet()
	before, err := n.proxy.metrics()
	if err != nil {
		return err
	}
	c := &churner{node: n, moving: map[int]movement{}}
	out := &churned{}
	looking, stop := context.WithCancel(context.Background())
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() { c.look(looking) })
	began := time.Now()
	if out.CPU, err = n.spent(c.write); err != nil {
		return err
	}
	out.Length = time.Since(began)
	c.settled(30 * time.Second)
	stop()
	watching.Wait()
	after, err := n.proxy.metrics()
	if err != nil {
		return err
	}
	const name = "sluice_event_to_kernel_duration_seconds"
	times := since(before.histogram(name), after.histogram(name))
	out.P50, out.P99 = quantile(times, 0.5), quantile(times, 0.99)
	out.Writes, out.Request, out.Seen, out.Unseen = len(c.request), spreadOf(c.request), spreadOf(c.seen), len(c.moving)
	r.Churn = out
	return nil
}

// write makes all changes.
func (c *churner) write() error {
	var ctx context.Context
	c.group, ctx = errgroup.WithContext(context.Background())
	c.group.SetLimit(64)
	tick := time.NewTicker(time.Second / time.Duration(c.o.rate))
	defer tick.Stop()
	for turn := range int(c.o.churn.Seconds() * float64(c.o.rate)) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return c.group.Wait()
		}
		c.one(ctx, turn)
	}
	return c.group.Wait()
}

// one begins a change. A probed Service that is still on its way is left alone,
// and so another one changed.
func (c *churner) one(ctx context.Context, turn int) {
	if turn%seenEvery == 0 {
		i := c.probed[turn/seenEvery%probes]
		if pod, ok := c.depart(i); ok {
			c.group.Go(func() error { return c.timed(ctx, i, pod) })
			return
		}
	}
	i := turn * 7919 % c.services // all over the place
	for _, busy := c.behind[i]; busy; _, busy = c.behind[i] {
		i = (i + 1) % c.services
	}
	c.group.Go(func() error { return c.timed(ctx, i, podIP(i, 0), podIP(i, 1), podIP(i, 4+turn/c.services%2)) })
}

// depart notes that a probed Service goes to its other pod, unless it is still
// on its way.
func (c *churner) depart(i int) (netip.Addr, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, busy := c.moving[i]; busy {
		return netip.Addr{}, false
	}
	c.behind[i] = 1 - c.behind[i]
	to := c.pods[c.behind[i]].Addr4()
	c.moving[i] = movement{time.Now(), to}
	return to, true
}

func (c *churner) timed(ctx context.Context, i int, addrs ...netip.Addr) error {
	began := time.Now()
	if err := c.set(ctx, i, 0, addrs...); err != nil {
		return fmt.Errorf("change Service %d: %w", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request = append(c.request, time.Since(began))
	return nil
}

// look asks the Services that are on their way until they have arrived.
func (c *churner) look(ctx context.Context) {
	for ctx.Err() == nil {
		for i, m := range c.underWay() {
			if got, err := c.reaches(i); err == nil && got == m.to {
				c.arrive(i, time.Since(m.began))
			}
		}
		time.Sleep(pause)
	}
}

func (c *churner) underWay() map[int]movement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.moving)
}

func (c *churner) arrive(i int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.moving, i)
	c.seen = append(c.seen, took)
}

// settled waits until all have arrived, but not for ever.
func (c *churner) settled(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && len(c.underWay()) > 0; {
		time.Sleep(10 * time.Millisecond)
	}
}
