//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/test/lab"
)

// result are the measurements with one number of Services.
type result struct {
	services int
	batches  map[string]map[string][]batch // by measurement and way, of each round

	load    time.Duration   // first write
	changes []time.Duration // of one endpoint
	maps    []bpf.Usage
}

// threads is how many threads of the runtime may run: a client and a server that wait for each other must not wait
// for the runtime.
const threads = 8

// measure makes all measurements with n Services.
func measure(t lab.T, o options, n int) (r result, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	s, err := newSite(t, n)
	if err != nil {
		return r, err
	}
	r.services = n
	ctx := context.Background()
	if err := s.plane.Refresh(ctx); err != nil {
		return r, err
	}
	began := time.Now()
	if err := s.pass(ctx); err != nil {
		return r, fmt.Errorf("load: %w", err)
	}
	r.load = time.Since(began)
	if r.maps, err = s.kernel.Usage(); err != nil {
		return r, err
	}
	if err := s.introduce(); err != nil {
		return r, err
	}
	if r.batches, err = s.traffic(o); err != nil {
		return r, err
	}
	r.changes, err = s.pipeline.changes(ctx, n, 2, o.changes)
	return r, err
}

// introduce makes programs decide for the client.
func (s *site) introduce() error {
	var pod bpf.Pod
	err := s.client.Do(func() (err error) {
		pod.NetNS, err = netns.Cookie()
		return err
	})
	pod.IPv4 = netip.MustParseAddr(clientAddr)
	return errors.Join(err, s.kernel.SetPods([]bpf.Pod{pod}))
}

// traffic makes the measurements of all ways in turns. Each way follows each other one, as it may leave work to the
// next.
func (s *site) traffic(o options) (map[string]map[string][]batch, error) {
	all := map[string]map[string][]batch{}
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range measurements() {
		all[m.title] = map[string][]batch{}
		for round := -1; round < o.rounds; round++ { // the first one is not counted: caches are cold
			runtime.GC()
			limit := debug.SetGCPercent(-1)
			order := random.Perm(len(s.ways))
			if round < 0 {
				slices.Sort(order)
			}
			for _, i := range order {
				w := s.ways[i]
				b, err := m.run(w, o)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", m.title, w.name, err)
				}
				if round >= 0 {
					all[m.title][w.name] = append(all[m.title][w.name], b)
				}
			}
			debug.SetGCPercent(limit)
		}
	}
	return all, s.decided(o)
}

// decided verifies that the programs have decided the connections of mode ebpf, and no others.
func (s *site) decided(o options) error {
	sum, err := s.sum()
	if err != nil {
		return err
	}
	perRound := 0
	for _, m := range measurements() {
		perRound += m.connections(o)
	}
	if want := uint64((o.rounds + 1) * perRound); sum != want {
		return fmt.Errorf("the programs have decided %d connections, want %d", sum, want)
	}
	return nil
}

// sum returns how many connections the programs have decided.
func (s *site) sum() (sum uint64, err error) {
	counts, err := s.kernel.Counts()
	for _, n := range counts {
		sum += n
	}
	return sum, err
}
