//go:build linux

package conformance

import (
	"fmt"
	"time"
)

// leastConnections are what kube-proxy has in mode ipvs only.
func leastConnections() []scenario {
	hereOnly := slice("web", "8080", "10.180.0.1 A")
	both := slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")
	return []scenario{
		{
			covers:  []int{332},
			summary: "with least connections new ones go to the backend that has few",
			cluster: []string{annotatedWeb("sluice-proxy.github.io/scheduler: lc"), hereOnly},
			steps: []step{
				fromAll(func(from, to string, _ source) step { return occupy(24, from, to, firstBackend) }),
				apply(both),
				when(hasSchedulers, fromAll(mostlySecond)).otherwise(fromAll(shared)),
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

// mostlySecond verifies that soon the second backend gets at least three quarters of the connections, and the first one
// the rest. It waits until connections are counted again, as planes guess in between.
func mostlySecond(from, to string, seen source) step {
	return soon(func(e *env) error {
		want, err := e.backends([]string{secondBackend, firstBackend})
		if err != nil {
			return err
		}
		time.Sleep(3 * time.Second)
		return e.balance(balance{from: from, to: to, seen: seen, want: want, n: 32, first: true})
	})
}
