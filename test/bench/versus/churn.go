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

	"github.com/sluice-proxy/sluice/test/bench/filled"
)

// probedEvery says that every tenth change of a churn is one of a probed Service, which connections observe.
const probedEvery = 10

// churner writes changes at a steady rate, and does not wait for a slow write before it begins the next.
type churner struct {
	*node
	group *errgroup.Group

	mu       sync.Mutex
	requests []time.Duration
	seen     []time.Duration
	pending  map[int]move // changes of probed Services that no connection has followed yet
}

// move is a change of a probed Service to its other pod.
type move struct {
	began time.Time
	to    netip.Addr
}

// churn measures many changes a second, most of them of Services without clients.
func (n *node) churn(r *result) error {
	n.quiet()
	c := &churner{node: n, pending: map[int]move{}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var observing sync.WaitGroup
	observing.Go(func() { c.observe(ctx) })
	var cpu, length time.Duration
	err := n.toKernel("churn.kernel", r, func() (err error) {
		began := time.Now()
		cpu, err = n.spent(c.write)
		length = time.Since(began)
		c.settle(30 * time.Second)
		return err
	})
	if err != nil {
		return err
	}
	stop()
	observing.Wait()
	r.Values["churn.rate"] = float64(len(c.requests)) / length.Seconds()
	r.share("churn.cpu", cpu, length)
	r.spread("churn.request", c.requests)
	r.spread("churn.seen", c.seen)
	r.count("churn.unseen", len(c.pending))
	return nil
}

// write makes all changes.
func (c *churner) write() error {
	var ctx context.Context
	c.group, ctx = errgroup.WithContext(context.Background())
	c.group.SetLimit(64)
	tick := time.NewTicker(time.Second / time.Duration(c.rate))
	defer tick.Stop()
	for turn := range int(c.amounts.churn.Seconds() * float64(c.rate)) {
		select {
		case <-tick.C:
			c.begin(ctx, turn)
		case <-ctx.Done():
			return c.group.Wait()
		}
	}
	return c.group.Wait()
}

// begin begins a change. It leaves a probed Service alone whose last change is
// pending, and changes another Service in its place.
func (c *churner) begin(ctx context.Context, turn int) {
	if turn%probedEvery == 0 {
		i := c.probed[turn/probedEvery%probes]
		if pod, ok := c.beginMove(i); ok {
			c.group.Go(func() error { return c.timed(ctx, i, pod) })
			return
		}
	}
	i := turn * 7919 % c.Services // spread over all Services
	for _, probed := c.podOf[i]; probed; _, probed = c.podOf[i] {
		i = (i + 1) % c.Services
	}
	c.group.Go(func() error {
		return c.timed(ctx, i, filled.PodIP(i, 0), filled.PodIP(i, 1), filled.PodIP(i, 4+turn/c.Services%2))
	})
}

// beginMove records that a probed Service moves to its other pod. It returns false if its last move is pending.
func (c *churner) beginMove(i int) (netip.Addr, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, pending := c.pending[i]; pending {
		return netip.Addr{}, false
	}
	c.podOf[i] = 1 - c.podOf[i]
	to := c.pods[c.podOf[i]].Addr4()
	c.pending[i] = move{time.Now(), to}
	return to, true
}

func (c *churner) timed(ctx context.Context, i int, addrs ...netip.Addr) error {
	began := time.Now()
	if err := c.set(ctx, i, 0, addrs...); err != nil {
		return fmt.Errorf("change Service %d: %w", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, time.Since(began))
	return nil
}

// observe connects to the Services with a pending move until a connection follows it.
func (c *churner) observe(ctx context.Context) {
	for ctx.Err() == nil {
		for i, m := range c.moves() {
			if got, err := c.connectOnce(i); err == nil && got == m.to {
				c.endMove(i, time.Since(m.began))
			}
		}
		time.Sleep(300 * time.Microsecond)
	}
}

func (c *churner) moves() map[int]move {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.pending)
}

func (c *churner) endMove(i int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, i)
	c.seen = append(c.seen, took)
}

// settle waits until no move is pending, for at most limit.
func (c *churner) settle(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && len(c.moves()) > 0; {
		time.Sleep(10 * time.Millisecond)
	}
}
