//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// timeout bounds one guest.
const timeout = 20 * time.Minute

// programTests are the tests of what programs for sockets do in the kernel. Others call them all the time while programs or maps change, which
// takes minutes in a guest, or compile them.
const programTests = "Connect|UDP|Pods|NodePort|By(Hash|Load)|Ramp|Lease|Exempt|Learn|Tables|Growth|Pins|Order|Answers|Try|Root|Stale|Verifier|Usage|Retried|Repeated|Evicted|Decisions|Filter|Flows|Unspecified|OwnAddress"

// socketScenarios are those of the plane ebpf, which leaves the others to nftables: ClusterIPs, who sees which source, traffic policies,
// UDP, affinity, restarts, and changes of the mode.
const socketScenarios = "S-00|S-01|S-02|S-03|S-04|S-107|S-110|S-12[3-6]|S-18|S-19|S-20|S-21[0-3]|S-273|S-274|S-281"

// jobs returns the tests to run, the longest first: all scenarios of each plane, except ebpf, in
// parts of similar length by the variants that scenarios have, and the tests of packages
// whose subject the machine's own kernel may lack.
func jobs() []job {
	var all []job
	scenarios := map[string]string{"ebpf": "^(" + socketScenarios + ")"}
	for _, plane := range []string{"iptables-legacy", "iptables-nft", "ipvs", "nftables", "ebpf"} {
		for _, variant := range []string{"IPv6", "(IPv4|dual-stack)"} {
			which := cmp.Or(scenarios[plane], anyTest)
			all = append(all, job{"./test/conformance", "TestConformance/^" + plane + "$/" + which + "/^" + variant + "$"})
		}
	}
	// A process needs sockets of SCTP, which other kernels may not have.
	all = append(all, job{"./internal/forward", "TestSCTP|TestIdle|TestUDPManyFlows"}, job{"./internal/kernel/bpf", programTests},
		job{"./test/takeover", "IPVS"}, job{"./internal/plane/ipvs", "OnTheKernel"},
		job{"./test/conformance", "TestConformance/^userspace$/^(S-005|S-107|S-110|S-205|S-274|S-309|S-310|S-311)/" + anyTest},
		job{"./internal/plane/ebpf", "Without|OtherKernels|SelfTest|Affinity|Decisions|Guarded"})
	for _, pkg := range []string{"kernel/ipvs", "kernel/link", "kernel/probe", "follow/sockets"} {
		all = append(all, job{"./internal/" + pkg, anyTest})
	}
	return append(all, job{"./internal/app", "ModeIPVS"}, job{"./internal/takeover", "IPVS"}, job{"./internal/plane/userspace", "TestSCTP"},
		job{"./test/bench", "Programs"}, job{"./test/bench/balance", anyTest})
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
	program := flag.String("program", "", "a program to run instead of tests: its package")
	timing := flag.String("clock", string(idleClock), "the clock of a program: idle, which advances only while nothing runs, or real")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	var err error
	if *program != "" {
		err = runProgram(ctx, *kernel, clock(*timing), append([]string{*program}, flag.Args()...))
	} else {
		err = runAll(ctx, *kernel, chosen(flag.Args(), *run))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "uml:", err)
		os.Exit(1)
	}
}

// chosen returns the tests of packages that match run; all jobs without packages.
func chosen(packages []string, run string) []job {
	if len(packages) == 0 {
		return jobs()
	}
	var list []job
	for _, pkg := range packages {
		list = append(list, job{pkg, run})
	}
	return list
}

// runAll runs every job and returns the errors of all. Each processor runs one guest
// at a time.
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
		return "", fmt.Errorf("no older kernel, so nothing was tested on it (make test-kernel builds it, or says why not): %w", err)
	}
	return path, nil
}

// freeProcessors returns the processors that this process may use, in a channel with capacity for
// all of them.
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
