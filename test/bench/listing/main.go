//go:build linux

// Command listing measures the cost for an API server when many clients start at once and each fetches all Services
// and EndpointSlices, by each way to fetch them. docs/benchmarks.md explains the numbers.
//
//	go run ./test/bench/listing                               # 10,000 Services, 1, 20 and 100 clients
//	go run ./test/bench/listing -sizes 1000 -rounds 1         # a small run, to verify that it works
//	go run ./test/bench/listing -sizes 100000 -clients 1
//
// KUBEBUILDER_ASSETS is the folder with kube-apiserver and etcd (make test-assets). It
// needs root, or unprivileged user namespaces, and leaves nothing behind if it is killed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/lab"
)

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = errors.Join(apiserver.Assets(), lab.Enter())
	}
	if err == nil {
		err = measure(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "listing:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	sizes, clients []int
	rounds         int
	limit          time.Duration // of a round
}

// mostServices is how many Services all clients together fetch at most in a round. More is left out: 100 clients of
// 10,000 Services are enough for a conclusion.
const mostServices = 1_000_000

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, help io.Writer) (options, error) {
	o := options{sizes: []int{10_000}, clients: []int{1, 20, 100}}
	fs := flag.NewFlagSet("listing", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.Func("sizes", "numbers of Services, with commas between (default 10000)", numbers(&o.sizes, filled.Largest))
	fs.Func("clients", fmt.Sprintf("numbers of clients that start at once (default 1,20,100); those that\n"+
		"would fetch more than %d Services in a round are left out", mostServices), numbers(&o.clients, 1000))
	fs.IntVar(&o.rounds, "rounds", 3, "how often the clients start, for each row")
	fs.DurationVar(&o.limit, "limit", 10*time.Minute, "how long a round may take")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 || o.rounds < 1 {
		return o, fmt.Errorf("want flags only, and at least one round, got %q and %d rounds", fs.Args(), o.rounds)
	}
	return o, nil
}

// numbers parses numbers from 1 to most.
func numbers(into *[]int, most int) func(string) error {
	return func(text string) error {
		*into = nil
		for word := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 || n > most {
				return fmt.Errorf("want numbers from 1 to %d, got %q", most, word)
			}
			*into = append(*into, n)
		}
		return nil
	}
}

// measure measures and prints a table for each size, with an API server of its own.
func measure(o options, w io.Writer) error {
	for _, size := range o.sizes {
		var failed error
		err := lab.Run(func(t lab.T) {
			s, err := filled.Start(t, size, func(i int) runtime.Object {
				return filled.Slice(i, 0, filled.PodIP(i, 0), filled.PodIP(i, 1), filled.PodIP(i, 2))
			})
			if err != nil {
				t.Fatalf("fill an API server with %d Services: %v", size, err)
			}
			failed = measureSize(s, o, w)
		})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("with %d Services: %w", size, err)
		}
	}
	return nil
}

// measureSize measures all ways, and prints each row when it is there.
func measureSize(s *filled.Server, o options, w io.Writer) error {
	printHead(w, s.Services, o.rounds)
	for _, clients := range o.clients {
		if clients*s.Services > mostServices {
			continue
		}
		for _, m := range fetch.Methods() {
			got, err := run(s, o, variant{m, clients})
			if err != nil {
				return fmt.Errorf("%d clients, %s: %w", clients, m.Name, err)
			}
			got.print(w)
		}
	}
	return nil
}
