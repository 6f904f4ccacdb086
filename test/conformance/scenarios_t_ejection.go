//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/test/lab"
)

// ejections are what kube-proxy does not have.
func ejections() []scenario {
	ejecting := annotatedWeb(`sluice-proxy.github.io/ejection: "on"`)
	return []scenario{{
		covers:  []int{333},
		summary: "a backend to which connections fail gets no new ones, until it answers in a trial",
		cluster: []string{ejecting, slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B")},
		steps: []step{when(ejects, sequence(
			fromAll(shared),
			silence("10.180.1.1"),
			within(ejectedBy, fromAll(answered)),
			heal("10.180.1.1"),
			within(backBy, fromAll(shared)),
		)).otherwise(fromAll(shared))},
	}}
}

// ejectedBy and backBy are how long it may take until a backend leaves, and is back with its whole share. Clients wait
// for backends that do not answer, and the pauses between trials grow.
const ejectedBy, backBy = time.Minute, 2 * time.Minute

// ejects selects planes with ejection.
func ejects(n *Traits) bool { return !inIPVSMode(n) }

// within retries a step for some time.
func within(limit time.Duration, s step) step {
	return func(e *env) error { return eventually(limit, func() error { return s(e) }) }
}

// answered connects some times and expects an answer each time, which only backends that are not silent can give.
func answered(from, to string, _ source) step {
	return func(e *env) error {
		client, p, err := e.resolve(from, to)
		if err != nil {
			return err
		}
		p.Timeout = lab.Soon
		var last error
		for range 16 {
			if r := client.Try(p); r.Outcome != lab.Answered {
				last = fmt.Errorf("%s to %s: %s, want an answer each time", from, to, r)
			}
		}
		return last
	}
}

// silence lets a pod drop what it receives, until heal.
func silence(pod string) step {
	return inPod(pod, "table inet silent { chain in { type filter hook input priority 0; policy drop; }; }")
}

func heal(pod string) step { return inPod(pod, "delete table inet silent") }

func inPod(pod, rules string) step {
	return func(e *env) error {
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		if out, err := h.Run(rules, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
}

// startEjection runs the part of the proxy that ejects, until the test ends.
func (p *proxyUnderTest) startEjection() (part *watch.Part, stop func(), err error) {
	table, err := conntrack.Open(p.host.NetNSFD())
	if err != nil {
		return nil, nil, err
	}
	part = watch.New(watch.Options{
		Table: table, Shares: p.store.SetShares, Direct: p.plane.Sockets || p.plane.proxied,
		CPU: func() time.Duration { return 0 }, Changed: func(watch.Change) {}, Save: func(watch.Saved) {},
		Failed: func(err error) { p.t.Errorf("cannot read conntrack: %v", err) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- part.Run(ctx) }()
	return part, func() {
		cancel()
		if err := errors.Join(<-ended, table.Close()); err != nil {
			p.t.Errorf("ejection ended: %v", err)
		}
	}, nil
}
