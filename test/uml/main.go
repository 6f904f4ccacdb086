//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// timeout bounds one guest.
const timeout = 20 * time.Minute

// programTests are the tests of programs for sockets in the kernel. Other tests call the programs all the time while
// programs or maps change, which takes minutes in a guest, or compile them.
const programTests = "Connect|UDP|Pods|NodePort|By(Hash|Load)|Ramp|Exempt|Tables|Growth|Pins|Order|" +
	"Answers|Try|Root|Stale|Verifier|Usage|Retried|Repeated|Evicted|Decisions|Flows|Unspecified|OwnAddress|" +
	"Durations|BackendCounts"

// socketScenarios are the scenarios of the plane ebpf, which leaves the others to nftables: ClusterIPs, who sees
// which source, traffic policies, UDP, affinity, restarts, and changes of the mode.
const socketScenarios = "S-00|S-01|S-02|S-03|S-04|S-107|S-110|S-12[3-6]|S-18|S-19|S-20|S-21[0-3]|S-273|S-274|S-281"

// parts returns patterns for all scenarios, by their numbers, in parts that take a similar time.
func parts() []string {
	return []string{"^S-2[0-4]", "^(S-2[5-9]|S-3)", "^S-1[5-9]", "^S-1[0-4]", "^S-0[5-9]", "^S-0[0-4]"}
}

// conformance returns the jobs of planes with all scenarios if full is "1". Otherwise they have all scenarios of
// ipvs, and the scenarios of nftables and ebpf that a kernel can change; ebpf leaves others to nftables.
func conformance(full string) (all []job) {
	planes := []string{"ipvs", "nftables", "ebpf"}
	if full == "1" {
		planes = []string{"iptables-legacy", "iptables-nft", "ipvs", "nftables", "ebpf"}
	}
	for _, plane := range planes {
		env := kernelScenarios
		if full == "1" || plane == "ipvs" {
			env = allScenarios
		}
		patterns := parts()
		if plane == "ebpf" {
			patterns = []string{"^(" + socketScenarios + ")"}
		}
		for _, pattern := range patterns {
			all = append(all, job{
				"./test/conformance", "TestConformance/^" + plane + "$/" + pattern + "/" + anyTest, plane, env,
			})
		}
	}
	return all
}

// Variables of conformance: the scenarios that a kernel can change, and all.
const kernelScenarios, allScenarios = "SCENARIOS=kernel", "FULL=1"

// jobs returns the tests to run, the longest first: scenarios of planes, in parts of similar length, and the tests of
// packages whose subject the machine's own kernel may lack.
func jobs(full string) []job {
	all := append(conformance(full),
		job{"./internal/relay", "TestIdle|TestUDPManyFlows", "userspace", ""},
		job{"./internal/linux/bpf", programTests, "ebpf", ""},
		job{"./test/takeover", "IPVS", "", ""}, job{"./internal/plane/ipvs", "OnTheKernel", "ipvs", ""},
		job{"./test/conformance", "TestConformance/^userspace$/^(S-005|S-107|S-110|S-205)/" + anyTest, "userspace", ""},
		job{"./internal/plane/ebpf", "Without|OtherKernels|SelfTest|Decisions", "ebpf", ""})
	for _, p := range []struct{ pkg, plane string }{
		{"linux/ipvs", "ipvs"}, {"linux/rtnl", "ipvs"}, {"linux/probe", ""}, {"plane/ebpf/sockets", "ebpf"},
	} {
		all = append(all, job{"./internal/" + p.pkg, anyTest, p.plane, ""})
	}
	return append(all, job{"./internal/app", "ModeIPVS", "", ""}, job{"./internal/takeover", "IPVS", "", ""},
		job{"./test/direct", "WithoutBackends|BehindARouter|Fragments|PathMTU", "", ""},
		job{"./test/bench", "Programs", "", ""}, job{"./test/bench/balance", anyTest, "", ""})
}

func ofPlane(plane string) ([]job, error) {
	list := slices.DeleteFunc(jobs("1"), func(j job) bool { return j.plane != plane })
	if len(list) == 0 {
		return nil, fmt.Errorf("no tests of a plane %q run on the older kernel", plane)
	}
	return list, nil
}

func main() {
	switch {
	case os.Getpid() == 1 && os.Getenv(guestVar) != "":
		runGuest()
	case len(os.Args) > 1 && os.Args[1] == hostArg:
		fmt.Fprintln(os.Stderr, "uml:", boot(os.Args[2:]))
		os.Exit(1)
	}
	kernel := flag.String("kernel", ".cache/test-kernel/linux", "the kernel, a program")
	run := flag.String("run", "", "which tests of the packages named; all if empty")
	plane := flag.String("plane", "", "a plane whose tests to run, without packages")
	program := flag.String("program", "", "a program to run instead of tests: its package")
	timing := flag.String("clock", string(idleClock),
		"the clock of a program: idle, which advances only while nothing runs, or real")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	var err error
	if *program != "" {
		err = runProgram(ctx, *kernel, clock(*timing), append([]string{*program}, flag.Args()...))
	} else {
		err = runChosen(ctx, *kernel, choice{flag.Args(), *run, *plane})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "uml:", err)
		os.Exit(1)
	}
}

// choice selects tests: of packages that match run, or of a plane.
type choice struct {
	packages   []string
	run, plane string
}

// jobs returns the tests that are selected; without packages and plane all that make runs there.
func (c choice) jobs(getenv func(string) string) ([]job, error) {
	switch {
	case c.plane != "":
		return ofPlane(c.plane)
	case len(c.packages) == 0:
		return jobs(getenv("FULL")), nil
	}
	var list []job
	for _, pkg := range c.packages {
		list = append(list, job{pkg: pkg, run: c.run})
	}
	return list, nil
}

func runChosen(ctx context.Context, kernel string, c choice) error {
	list, err := c.jobs(os.Getenv)
	if err != nil {
		return err
	}
	return runAll(ctx, kernel, list)
}

// runAll runs every job and returns the errors of all. Each processor runs one guest at a time.
func runAll(ctx context.Context, kernel string, jobs []job) error {
	out := &output{w: os.Stdout}
	if reason := unsupported(runtime.GOARCH); reason != "" {
		for _, j := range jobs {
			out.skip(j, reason)
		}
		return nil
	}
	kernel, err := find(kernel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(kernel), ".tests.")
	if err != nil {
		return fmt.Errorf("create a folder for test binaries: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tests, err := compile(ctx, dir, jobs)
	if err != nil {
		return err
	}
	free, err := freeProcessors()
	if err != nil {
		return err
	}
	lab.RaisePriority() // as the tests beside it, which would starve the guests
	errs := make([]error, len(tests))
	var all sync.WaitGroup
	for i, t := range tests {
		processor := <-free // not in the goroutine, so that jobs start in order
		all.Go(func() {
			defer func() { free <- processor }()
			if err := t.runInGuest(ctx, kernel, processor, out); err != nil {
				errs[i] = fmt.Errorf("%s: %w", t.name(), err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// unsupported returns why there is no guest for an architecture; empty if there is one.
func unsupported(arch string) string {
	if arch == "amd64" {
		return ""
	}
	return "no older kernel: user mode Linux is for x86_64, this machine is " + arch
}

// find returns the absolute path of the kernel, or an error with the remedy if it does not exist.
func find(kernel string) (string, error) {
	path, err := filepath.Abs(kernel)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("no older kernel, so nothing was tested on it "+
			"(make test-kernel builds it, or says why not): %w", err)
	}
	return path, nil
}

// freeProcessors returns the processors that this process may use, in a channel with capacity for all of them.
func freeProcessors() (chan int, error) {
	all, err := processors()
	if err != nil {
		return nil, err
	}
	free := make(chan int, len(all))
	for _, n := range all {
		free <- n
	}
	return free, nil
}
