//go:build linux

// Command bench measures Sluice from its store to the kernel of this machine, in new network
// namespaces, and prints a Markdown table. docs/benchmarks.md explains each number. The whole
// program, and kube-proxy, are measured by test/bench/versus.
//
//	go run ./test/bench
//	go run ./test/bench -plane userspace -sizes 100,1000,10000
//	go run ./test/bench -questions -sizes 100000 # the delay of changes while get, explain and diff run
//	go run ./test/uml -clock real -program ./test/bench -- -programs -sizes 100,10000
//
// The last one measures mode ipvs beside ipvsadm, ipset, ip and iptables-restore, in user mode Linux.
//
// It needs root, or unprivileged user namespaces.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// options are the flags.
type options struct {
	plane   string // of planes()
	sizes   []int
	runs    int
	changes int
	crowded bool   // measure the effect of a large Service on others
	shape   int    // from 1; set in the process that measures one shape
	child   int    // services; set in the process that measures one size
	dir     string // for files of the measuring process; set there
	profile string // folder for profiles of the measuring processes

	questions bool // measure changes during queries
	programs  bool // compare mode ipvs with the programs that write the same
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, help io.Writer) (options, error) {
	o := options{sizes: []int{1_000, 10_000, 100_000}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.Func("sizes", "numbers of Services, with commas between (default 1000,10000,100000)", func(text string) error {
		o.sizes = nil
		for word := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 100 {
				return fmt.Errorf("want numbers from 100 up, got %q", word)
			}
			o.sizes = append(o.sizes, n)
		}
		return nil
	})
	fs.StringVar(&o.plane, "plane", planes()[0].name, "of "+strings.Join(planeNames(), ","))
	fs.IntVar(&o.runs, "runs", 5, "runs of each size; the table has their medians")
	fs.IntVar(&o.changes, "changes", 1000, "changes of each kind in a run")
	fs.StringVar(&o.profile, "profile", "", "folder to write CPU and heap profiles to")
	fs.BoolVar(&o.crowded, "crowded", false, "measure how long changes wait for a large Service, in place of all else")
	fs.IntVar(&o.shape, "shape", 0, "measure one large Service in this process and print JSON; for bench itself")
	fs.BoolVar(&o.questions, "questions", false,
		"measure how long changes take while a daemon is asked questions, of each size once")
	fs.BoolVar(&o.programs, "programs", false,
		"measure mode ipvs beside the programs that write the same: ipvsadm, ipset, ip, iptables-restore")
	fs.IntVar(&o.child, "child", 0, "measure one size in this process and print JSON; for bench itself")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.runs < 1 || o.changes < 10 {
		return o, fmt.Errorf("want at least one run of 10 changes, got %d of %d", o.runs, o.changes)
	}
	if o.programs {
		o.plane = ipvsPlane
	}
	if !slices.Contains(planeNames(), o.plane) {
		return o, fmt.Errorf("want a plane of %s, got %q", strings.Join(planeNames(), ","), o.plane)
	}
	return o, nil
}

func run(o options, w io.Writer) error {
	switch {
	case o.child > 0:
		return measureChild(o, w)
	case o.shape > 0:
		return measureShape(o, w)
	case o.crowded:
		return measureCrowded(o, w)
	case o.questions:
		return reportQuestions(o, w)
	case o.programs:
		return reportPrograms(o, w)
	}
	return measureSizes(o, w)
}
