//go:build linux

// Command balance measures how each scheduler of IPVS spreads connections over backends whose
// requests take different times, and prints Markdown tables. docs/ipvs.md explains them.
//
//	go run ./test/uml -program ./test/bench/balance
//	go run ./test/uml -program ./test/bench/balance -- -schedulers rr,lc -requests 1000
//
// It needs a kernel with IPVS. The clock of test/uml advances only while nothing runs, so the
// results do not depend on the speed of this machine, and requests take only virtual time.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// options are the flags.
type options struct {
	schedulers []string
	requests   int    // of all clients together, in each run
	seed       uint64 // of the times that requests and pauses take
}

func schedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "sed", "nq", "mh", "sh", "dh", "lblc", "lblcr", "fo", "ovf"}
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = lab.Enter()
	}
	if err == nil {
		err = run(context.Background(), o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "balance:", err)
		os.Exit(1)
	}
}

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, help io.Writer) (options, error) {
	o := options{schedulers: schedulers()}
	fs := flag.NewFlagSet("balance", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.Func("schedulers", "schedulers to measure, with commas between (default all)", func(text string) error {
		o.schedulers = strings.Split(text, ",")
		return nil
	})
	fs.IntVar(&o.requests, "requests", 6400, "requests in each run")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the times that requests and pauses take")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.requests < clients {
		return o, fmt.Errorf("want at least one request of each of %d clients, got %d", clients, o.requests)
	}
	return o, nil
}

// run measures all scenarios.
func run(ctx context.Context, o options, w io.Writer) error {
	h, err := newHost(ctx)
	if err != nil {
		return err
	}
	for _, s := range scenarios() {
		var results []result
		for _, scheduler := range o.schedulers {
			r, err := h.measure(ctx, o, s, scheduler)
			if err != nil {
				return fmt.Errorf("%s, scheduler %s: %w", s.title, scheduler, err)
			}
			results = append(results, r)
		}
		if err := printTable(w, s, results); err != nil {
			return err
		}
	}
	return nil
}
