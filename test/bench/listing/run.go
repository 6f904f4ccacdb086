//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/harness"
)

// variant is a row of the table.
type variant struct {
	fetch.Method

	clients int
}

// result has the measurements of a variant.
type result struct {
	variant

	each   []time.Duration // until each client of each round had everything
	costs  []fetch.Cost    // of each round
	before uint64          // memory of the API server, in bytes
	peak   uint64

	bytes   int64 // received in all rounds
	refused int64 // requests in all rounds
}

// run measures a variant on an API server that has just been started, so that its memory does not include the memory
// of earlier variants.
func run(s *filled.Server, o options, v variant) (*result, error) {
	pid, err := restart(s)
	if err != nil {
		return nil, err
	}
	config, err := s.UserConfig()
	if err != nil {
		return nil, err
	}
	// The first lists fill the caches of the API server.
	if _, err := fetch.List(context.Background(), config); err != nil {
		return nil, err
	}
	r := &result{variant: v}
	if r.before, err = resetPeak(pid); err != nil {
		return nil, err
	}
	for range o.rounds {
		if err := r.round(s, o, config, pid); err != nil {
			return nil, err
		}
	}
	r.peak, err = harness.PeakMemory(pid)
	return r, err
}

// restart starts the API server again and waits until its watch cache is full.
func restart(s *filled.Server) (int, error) {
	if err := s.StopServer(); err != nil {
		return 0, err
	}
	if err := s.StartServer(); err != nil {
		return 0, fmt.Errorf("start the API server again: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := s.Served(ctx); err != nil {
		return 0, err
	}
	pid, err := s.ServerPID()
	if err != nil {
		return 0, err
	}
	return pid, idle(ctx, pid)
}

// idle waits until a process uses less than a tenth of a core: the API server has work to do
// for some seconds after it answers.
func idle(ctx context.Context, pid int) error {
	const span = 500 * time.Millisecond
	for ctx.Err() == nil {
		cost, err := fetch.Measure(pid, func() error {
			time.Sleep(span)
			return nil
		})
		if err != nil || cost.Server < span/10 {
			return err
		}
	}
	return fmt.Errorf("the API server is still busy: %w", ctx.Err())
}

// resetPeak makes the memory that a process has now its peak, and returns it.
func resetPeak(pid int) (uint64, error) {
	const peak = "5" // of proc_pid_clear_refs(5)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peak), 0); err != nil {
		return 0, fmt.Errorf("reset the peak memory: %w", err)
	}
	return harness.PeakMemory(pid)
}

// round starts all clients at once, and waits until each has everything.
func (r *result) round(s *filled.Server, o options, config *rest.Config, pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.limit)
	defer cancel()
	clients := make([]*fetch.Drain, r.clients)
	for i := range clients {
		var err error
		if clients[i], err = fetch.NewDrain(config); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	took := make([]time.Duration, r.clients)
	cost, err := fetch.Measure(pid, func() error {
		began := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		for i, c := range clients {
			group.Go(func() error {
				defer func() { took[i] = time.Since(began) }()
				return everything(ctx, c, r.Method, s.Services)
			})
		}
		return group.Wait()
	})
	if err != nil {
		return err
	}
	r.costs, r.each = append(r.costs, cost), slices.Concat(r.each, took)
	for _, c := range clients {
		r.bytes += c.Bytes()
		r.refused += c.Refused()
	}
	return nil
}

func everything(ctx context.Context, c *fetch.Drain, m fetch.Method, services int) error {
	got, err := c.All(ctx, m)
	if err == nil && min(got[0], got[1]) < services {
		err = fmt.Errorf("got %d Services and %d EndpointSlices only", got[0], got[1])
	}
	return err
}
