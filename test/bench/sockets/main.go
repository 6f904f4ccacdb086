//go:build linux

// Command sockets measures mode ebpf beside direct connections and mode nftables, and prints Markdown
// tables. docs/benchmarks.md explains each number.
//
//	go run ./test/bench/sockets                                 # three minutes
//	go run ./test/bench/sockets -sizes 10,100000 -rounds 300    # for a quiet machine
//
// A pod connects to another pod of the same node, in network namespaces of a lab. All ways to the backend
// are measured in turns, each time with the same number of calls, so other load on the machine affects
// all alike. It needs root of the machine, which may load programs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// options are the flags.
type options struct {
	sizes   []int // numbers of Services
	rounds  int
	calls   int // of each way and measurement in a round
	stream  int // bytes of each way in a round
	changes int // of endpoints
}

// maxCalls is the largest number of connections that the backend does not accept before all are made.
const maxCalls = 4000

func main() {
	if err := bench(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sockets:", err)
		os.Exit(1)
	}
}

func bench(args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "sockets: mode ebpf is not measured: only root of the machine may load programs")
		return nil
	}
	lab.RaisePriority()
	if err := errors.Join(withoutSignals(), lab.Enter()); err != nil {
		return err
	}
	return run(o, os.Stdout)
}

// withoutSignals keeps the runtime of the process that lab starts from interrupting system calls: calls with a
// timeout end then.
func withoutSignals() error { return os.Setenv("GODEBUG", "asyncpreemptoff=1") }

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, help io.Writer) (options, error) {
	o := options{sizes: []int{10, 1_000, 10_000, 100_000}}
	fs := flag.NewFlagSet("sockets", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.Func("sizes", "numbers of Services, with commas between (default 10,1000,10000,100000)", func(text string) error {
		o.sizes = nil
		for word := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < minServices {
				return fmt.Errorf("want numbers from %d up, got %q", minServices, word)
			}
			o.sizes = append(o.sizes, n)
		}
		return nil
	})
	fs.IntVar(&o.rounds, "rounds", 50, "rounds of each measurement")
	fs.IntVar(&o.calls, "calls", 500, "calls of each way in a round")
	fs.IntVar(&o.stream, "stream", 64<<20, "bytes of a stream in a round")
	fs.IntVar(&o.changes, "changes", 1000, "changes of an endpoint")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("want flags only, got %q", fs.Args())
	}
	return o, o.check()
}

func (o options) check() error {
	if o.rounds < 1 || o.calls < 1 || o.calls > maxCalls {
		return fmt.Errorf("want at least one round of 1 to %d calls, got %d of %d", maxCalls, o.rounds, o.calls)
	}
	if o.stream < 1 || o.changes < 1 {
		return fmt.Errorf("want at least one byte and one change, got %d and %d", o.stream, o.changes)
	}
	return nil
}

// run measures each size, and prints the report.
func run(o options, w io.Writer) error {
	var all []result
	for _, n := range o.sizes {
		fmt.Fprintf(os.Stderr, "sockets: %d Services\n", n)
		var r result
		var failed error
		err := lab.Run(func(t lab.T) { r, failed = measure(t, o, n) })
		if err == nil {
			err = failed
		}
		if err != nil {
			return fmt.Errorf("%d Services: %w", n, err)
		}
		all = append(all, r)
	}
	_, err := io.WriteString(w, report(o, all))
	return err
}
