//go:build linux

// Command least measures how many connections backends have at the same time if one of them takes longer for each
// request, with backends at random and with least connections of several modes, and prints a Markdown table.
// docs/balancing.md has it.
//
//	go run ./test/bench/least                                   # two minutes
//	go run ./test/bench/least -ways nftables-lc -seconds 120
//
//	make build && go run ./test/uml -program ./test/bench/least -- -sluice $PWD/bin/sluice -ways nftables-lc,ipvs-lc
//
// The way ipvs-lc needs a kernel with IPVS, ebpf-lc root of the machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// way is a mode with a scheduler.
type way struct{ name, mode, scheduler string }

func ways() []way {
	return []way{
		{"nftables-random", "nftables", ""},
		{"nftables-lc", "nftables", "lc"},
		{"ebpf-lc", "ebpf", "lc"},
		{"ipvs-lc", "ipvs", "lc"},
	}
}

// options are the flags.
type options struct {
	ways    string
	seconds int    // of a measurement, after as long without one
	sluice  string // program; empty: it is built
}

func main() {
	o := options{}
	flag.StringVar(&o.ways, "ways", "nftables-random,nftables-lc,ebpf-lc", "what to measure, with commas between")
	flag.IntVar(&o.seconds, "seconds", 20, "duration of each measurement, and of the time before it")
	flag.StringVar(&o.sluice, "sluice", "", "the program sluice (default: one that is built for this run)")
	flag.Parse()
	err := lab.Enter()
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "least:", err)
		os.Exit(1)
	}
}

// run measures all ways, each in a lab of its own.
func run(o options, w io.Writer) error {
	fmt.Fprintf(w, "| | connections at a backend: p50 | p99 | most | at the slow one, on average | at each other one |\n")
	fmt.Fprintf(w, "|---|---:|---:|---:|---:|---:|\n")
	for _, way := range ways() {
		if !strings.Contains(","+o.ways+",", ","+way.name+",") {
			continue
		}
		var c counts
		var failed error
		err := lab.Run(func(t lab.T) { c, failed = measure(t, way, o) })
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		if _, err := fmt.Fprintf(w, "| %s | %s |\n", way.name, c); err != nil {
			return err
		}
	}
	return nil
}
