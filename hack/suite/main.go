// Command suite runs the tests of the project: the steps of make unit, check, test, test-rest and plane.
//
//	suite [-cache DIR] [-add FILE] unit|check|test|test-rest|plane PLANE
//
// A shell runs the command of each step; two steps run at a time, in the order of the list, so that steps that wait
// for programs to be built do not delay others. All steps run, even after a failure, except steps that need a failed
// one. suite reads the format of go test -json. A step without such output counts as one test, by its exit status.
// Attributes of tests with a key TABLE/ROW are printed as tables at the end.
//
// It prints the steps with their last durations, then a line of progress every half a minute, the output of failed
// tests, the seconds of each package, and at last the sum, to which -add adds the sum of an earlier run:
//
//	sluice: 812 passed, 0 failed, 2 skipped
//
// The exit status is 1 if a test or step failed. docs/decisions/0026 explains why this is not gotestsum.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
)

func main() {
	cache := flag.String("cache", ".cache", "folder of the file with the durations of earlier runs")
	add := flag.String("add", "", "file with the sum of an earlier run, which is added to that of this one, and replaced")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	failed, err := run(ctx, flag.Args(), options{cache: *cache, add: *add})
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

// options are the flags.
type options struct{ cache, add string }

// run runs the steps that args name, and reports whether one failed.
func run(ctx context.Context, args []string, o options) (failed bool, err error) {
	ipvs, err := kerneltest.HasIPVS()
	if err != nil {
		return false, err
	}
	steps, err := stepsOf(args, kernel{ipvs: ipvs})
	if err != nil {
		return false, err
	}
	times, err := readTimes(filepath.Join(o.cache, "times.json"))
	if err != nil {
		return false, err
	}
	sum := newSummary(os.Stdout)
	if err := sum.add(o.add); err != nil {
		return false, err
	}
	env, err := environment()
	if err != nil {
		return false, err
	}
	speed := machine.Measure()
	r := &runner{
		title: "make " + strings.Join(args, " "), sum: sum, times: times,
		env:   append(env, speed.Environ()),
		notes: []string{"Bounds on time are those of this machine: " + speed.String() + "."},
	}
	if args[0] == "test" && !ipvs {
		r.notes = append(r.notes,
			"This kernel has no IPVS: make plane PLANE=ipvs and make test-rest test that mode on Linux 6.1.")
	}
	if err := r.run(ctx, steps); err != nil {
		return false, err
	}
	return sum.Failed > 0, sum.save(o.add)
}

// environment returns the variables for all steps: the program that the step sluice builds.
func environment() ([]string, error) {
	program, err := filepath.Abs("bin/sluice")
	if err != nil {
		return nil, err
	}
	return []string{"SLUICE=" + program}, nil
}
