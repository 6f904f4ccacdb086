//go:build linux

// Command direct measures Services whose nodes pass connections of clients outside on to each other (docs/direct.md),
// beside the same Services without that, and beside kube-proxy. Three nodes are behind a router with ECMP.
//
//	go run ./test/bench/direct                 # everything: half an hour
//	go run ./test/bench/direct -parts cost     # what a packet costs the node where it enters: a minute
//	go run ./test/bench/direct -parts survive -changes 5 -period 1s    # to verify that it works
//
// With KUBE_PROXY, the path of kube-proxy, and KUBEBUILDER_ASSETS, the folder with kube-apiserver and etcd
// (make test-assets), it measures kube-proxy, too. It touches nothing outside of its network namespaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

type options struct {
	parts   string
	batches int // of packets, to each node

	connections int
	pace        time.Duration // of messages on each connection
	changes     int
	period      time.Duration // of changes

	kubeProxy string // program; empty: not measured
}

func main() {
	o := options{kubeProxy: os.Getenv("KUBE_PROXY")}
	flag.StringVar(&o.parts, "parts", "cost,survive", "what to measure, with commas between")
	flag.IntVar(&o.batches, "batches", 20_000, "batches of packets to each node (cost)")
	flag.IntVar(&o.connections, "connections", 1000, "open connections (survive)")
	flag.DurationVar(&o.pace, "pace", 100*time.Millisecond, "time between two messages on a connection (survive)")
	flag.IntVar(&o.changes, "changes", 100, "random changes (survive)")
	flag.DurationVar(&o.period, "period", 6*time.Second, "time between two random changes (survive)")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "direct:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if err := lab.Enter(); err != nil {
		return err
	}
	for part := range strings.SplitSeq(o.parts, ",") {
		measure := map[string]func(options) error{"cost": cost, "survive": survive}[part]
		if measure == nil {
			return fmt.Errorf("no part %q", part)
		}
		if err := measure(o); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

// inLab calls f with a rig of its own.
func inLab(f func(*rig) error) error {
	var failed error
	err := lab.Run(func(t lab.T) {
		r, err := newRig(t)
		if failed = err; err == nil {
			failed = f(r)
		}
	})
	return errors.Join(err, failed)
}
