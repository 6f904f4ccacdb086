//go:build linux

package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/filled"
)

// options are the flags.
type options struct {
	sizes     []int
	proxies   []string
	parts     []string
	results   string        // file
	report    bool          // only print saved results
	kubeProxy string        // program; empty if there is none
	sluice    string        // program; empty: it is built
	limit     time.Duration // of each wait
	amounts
}

// amounts are the numbers and durations of measurements.
type amounts struct {
	changes     int           // isolated ones, at most
	changing    time.Duration // after which no further isolated change begins
	idle        time.Duration
	connects    int // of each kind
	rate        int // changes a second
	churn       time.Duration
	rolling     int // endpoints
	rollingRate int // slices written in a second
}

// partNames returns the parts of a measurement, in the order of a run.
func partNames() []string {
	return []string{"bare", "start", "idle", "change", "connect", "churn", "rolling", "heap", "restart"}
}

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, kubeProxy string, help io.Writer) (options, error) {
	o := options{kubeProxy: kubeProxy, parts: partNames(), proxies: []string{sluice}, amounts: amounts{
		changes: 200, changing: 5 * time.Minute, idle: time.Minute, connects: 4000,
		rate: 100, churn: time.Minute, rolling: 5000, rollingRate: 20,
	}}
	if kubeProxy != "" {
		o.proxies = []string{sluice, "nftables", "iptables"}
	}
	fs := flag.NewFlagSet("versus", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.Func("sizes", "numbers of Services, with commas between (default 1000,10000,100000)",
		func(text string) (err error) {
			o.sizes, err = numbers(text)
			return err
		})
	fs.Func("proxies", "of "+strings.Join(proxyNames(), ",")+"; the -eager ones have the shortest minSyncPeriod\n"+
		"there is (default sluice,nftables,iptables; sluice alone without KUBE_PROXY)", words(&o.proxies, proxyNames()))
	fs.Func("parts", "of "+strings.Join(partNames(), ",")+" (default all)", words(&o.parts, partNames()))
	fs.StringVar(&o.results, "results", ".cache/bench.json",
		"file with the results; it keeps those that are not measured again")
	fs.BoolVar(&o.report, "report", false, "only print the tables of what was measured before")
	fs.DurationVar(&o.limit, "limit", 10*time.Minute, "how long to wait for anything before it counts as not reached")
	fs.DurationVar(&o.changing, "changing", o.changing,
		"duration of isolated changes, which are 200 if time allows")
	fs.StringVar(&o.sluice, "sluice", "", "the program sluice (default: one that is built for this run)")
	quick := fs.Bool("quick", false, "500 Services and little of everything")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("want flags only, got %q", fs.Arg(0))
	}
	sizes := []int{1_000, 10_000, 100_000}
	if *quick { // runs all code, but the numbers mean little
		sizes, o.amounts = []int{500}, amounts{
			changes: 20, changing: 10 * time.Second, idle: time.Second, connects: 100,
			rate: 50, churn: 2 * time.Second, rolling: 400, rollingRate: 20,
		}
	}
	if len(o.sizes) == 0 {
		o.sizes = sizes
	}
	return o, o.check()
}

// check verifies that there is a kube-proxy if one is to be measured.
func (o options) check() error {
	if o.report || !slices.ContainsFunc(o.proxies, func(name string) bool { return !isSluice(name) }) {
		return nil
	}
	if o.kubeProxy == "" {
		return fmt.Errorf("measure %s: KUBE_PROXY is not set; want the path of the program kube-proxy",
			strings.Join(o.proxies, ","))
	}
	if _, err := os.Stat(o.kubeProxy); err != nil {
		return fmt.Errorf("KUBE_PROXY is not a program: %w", err)
	}
	return nil
}

func numbers(text string) ([]int, error) {
	var out []int
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 100 || n > filled.Largest {
			return nil, fmt.Errorf("want numbers from 100 to %d, got %q", filled.Largest, word)
		}
		out = append(out, n)
	}
	return out, nil
}

func words(into *[]string, known []string) func(string) error {
	return func(text string) error {
		*into = strings.Split(text, ",")
		for _, word := range *into {
			if !slices.Contains(known, word) {
				return fmt.Errorf("want some of %s, got %q", strings.Join(known, ","), word)
			}
		}
		return nil
	}
}
