//go:build linux

// Command counting measures what the counts of connections cost a packet in mode nftables, and prints a Markdown table.
// docs/signals.md has the numbers.
//
//	go run ./test/bench/counting                # two minutes
//	go run ./test/bench/counting -rounds 200    # for a busy machine
//
//	go run ./test/bench/counting -outside       # to a backend on another host
//
// Two nodes have the same rules, but those of one do not count. A pod connects by a Service to a pod of the same node,
// or to another host, in turn on both nodes; then the nodes change roles. The control has rules that do not count on
// both.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

func main() {
	rounds := flag.Int("rounds", 80, "rounds of each measurement, from 2 on")
	pairs := flag.Int("pairs", 512, "pairs in a round")
	backend := placement(podOf)
	flag.BoolFunc("outside", "the backend is on another host, not on the node of the client", func(string) error {
		backend = outside
		return nil
	})
	flag.Parse()
	err := lab.Enter()
	if err == nil {
		err = run(*rounds, *pairs, backend, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "counting:", err)
		os.Exit(1)
	}
}

// run measures everything, and prints a row for each case.
func run(rounds, pairs int, backend placement, w io.Writer) error {
	if rounds < 2 || pairs < 1 {
		return errors.New("want at least two rounds of one pair")
	}
	cases := []*kase{
		{name: "connect()", rules: (*site).counting, run: (*site).connect},
		{name: "connect(), control", rules: (*site).plain, run: (*site).connect},
		{name: "8 bytes to and fro", rules: (*site).counting, run: (*site).exchange},
		{name: "8 bytes to and fro, control", rules: (*site).plain, run: (*site).exchange},
	}
	var failed error
	err := lab.Run(func(t lab.T) {
		l := lab.New(t, lab.Options{})
		sites := [2]*site{backend.site(t, l, l.NodeA, 0), backend.site(t, l, l.NodeB, 1)}
		for round := range rounds {
			for _, k := range cases {
				failed = errors.Join(failed, k.round([2]*site{sites[round%2], sites[1-round%2]}, pairs))
			}
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	fmt.Fprintf(w, "| | without counts, median | ratio of two rounds, p10 | p25 | p50 | p75 | p90 |\n"+
		"|---|---:|---:|---:|---:|---:|---:|\n")
	for _, k := range cases {
		k.print(w)
	}
	return nil
}

// kase is something to measure.
type kase struct {
	name  string
	rules func(*site) []string // of the node that counts
	run   func(*site) (time.Duration, error)

	without []time.Duration
	ratios  []float64 // the median of each round
}

// round measures pairs on a node with counts and one without.
func (k *kase) round(sites [2]*site, pairs int) error {
	sites[0].rewrite(k.rules(sites[0]))
	sites[1].rewrite(sites[1].plain())
	const unmeasured = 32 // at the beginning
	var ratios []float64
	for i := range unmeasured + pairs {
		var took [2]time.Duration
		for _, at := range [2]int{i % 2, 1 - i%2} {
			var err error
			if took[at], err = k.run(sites[at]); err != nil {
				return err
			}
		}
		if i >= unmeasured {
			k.without = append(k.without, took[1])
			ratios = append(ratios, float64(took[0])/float64(took[1]))
		}
	}
	slices.Sort(ratios)
	k.ratios = append(k.ratios, ratios[len(ratios)/2])
	return nil
}

// print prints quantiles of the ratio of two rounds in which the nodes had changed roles, so that what differs between
// nodes does not matter.
func (k *kase) print(w io.Writer) {
	var ratios []float64
	for i := 1; i < len(k.ratios); i += 2 {
		ratios = append(ratios, math.Sqrt(k.ratios[i-1]*k.ratios[i]))
	}
	slices.Sort(ratios)
	fmt.Fprintf(w, "| %s | %v", k.name, harness.Quantile(k.without, 0.5))
	for _, percent := range []int{10, 25, 50, 75, 90} {
		fmt.Fprintf(w, " | %.4f", ratios[len(ratios)*percent/100])
	}
	fmt.Fprintln(w, " |")
}
