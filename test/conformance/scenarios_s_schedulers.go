//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// leastConnections are what kube-proxy has in mode ipvs only.
func leastConnections() []scenario {
	const here, there = firstBackend, secondBackend
	hereOnly := slice("web", "8080", "10.180.0.1 A")
	both := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	return []scenario{
		{
			covers:  []int{332},
			summary: "with least connections new ones go to the backend that has few",
			cluster: []string{annotatedWeb("sluice-proxy.github.io/scheduler: lc"), hereOnly},
			steps: []step{
				fromAll(func(from, to string, _ source) step { return occupy(24, from, to, here) }),
				apply(both),
				when(countsConnections, fromAll(func(from, to string, _ source) step {
					return soon(mostly(from, to, there, here))
				})).otherwise(fromAll(shared)),
				sendOnAll,
			},
		},
	}
}

// occupy opens connections to a backend and keeps them.
func occupy(n int, from, to, backend string) step {
	var all []step
	for i := range n {
		all = append(all, open(fmt.Sprintf("%d from %s", i, from), from, to, backend))
	}
	return sequence(all...)
}

// mostly verifies that a backend gets at least three quarters of the connections, and another one the rest. It waits
// first until connections are counted again, as planes guess in between.
func mostly(from, to, most, rest string) step {
	return func(e *env) error {
		want, err := e.backends([]string{most, rest})
		if err != nil {
			return err
		}
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		time.Sleep(3 * time.Second)
		const n = 32
		hits := map[netip.AddrPort]int{}
		got := observation{verdict: explain.Balanced}
		for range n {
			r := client.Try(probe)
			if r.Outcome != lab.Answered || !slices.Contains(want, r.Backend) {
				return fmt.Errorf("%s to %s: %s, want an answer of %s", from, to, r, want)
			}
			hits[r.Backend]++
			got.results = append(got.results, r)
		}
		if hits[want[0]] < n*3/4 {
			return fmt.Errorf("%s to %s: %d of %d connections reached %s, want most", from, to, hits[want[0]], n, want[0])
		}
		return e.checkExplain(client, probe, got)
	}
}
