//go:build linux

// Command versus measures Sluice and kube-proxy, one after another, each on its own node, as clients of one real API
// server with many Services, with real connections. docs/benchmarks.md explains each number.
//
//	go run ./test/bench/versus                                  # everything: hours, most of them kube-proxy's
//	go run ./test/bench/versus -quick                           # a small run, to verify that it works
//	go run ./test/bench/versus -sizes 10000 -proxies sluice,nftables,iptables
//	go run ./test/bench/versus -sizes 1000,100000 -proxies sluice -parts start,change
//	go run ./test/bench/versus -report                          # print the tables of all saved results
//
// Mode ipvs, in user mode Linux if this kernel has no IPVS; results are lost, so it prints them:
//
//	make build && go run ./test/uml -clock real -program ./test/bench/versus -- -sluice bin/sluice \
//		-results /dev/shm/bench.json -proxies sluice-ipvs,ipvs -parts start,idle,change,connect -sizes 1000
//
// KUBEBUILDER_ASSETS is the folder with kube-apiserver and etcd (make test-assets), KUBE_PROXY the path of kube-proxy.
// Without KUBE_PROXY only Sluice is measured. Each part is saved in -results when it ends, with the results of other
// runs, so a run can be interrupted or split.
//
// It needs root, or unprivileged user namespaces. It touches nothing outside of
// its network namespaces, and leaves nothing behind if it is killed.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

func main() {
	o, err := parse(os.Args[1:], os.Getenv("KUBE_PROXY"), os.Stderr)
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
		os.Exit(1)
	}
}

// run measures, unless only a report is requested, and prints all saved results.
func run(o options, w io.Writer) error {
	if !o.report {
		if err := errors.Join(apiserver.Assets(), lab.Enter()); err != nil {
			return err
		}
		if err := measure(o); err != nil {
			return err
		}
	}
	results, err := load(o.results)
	if err != nil {
		return err
	}
	return printReport(w, results)
}

// measure measures all sizes, each with one API server, and all proxies, each on a new node.
func measure(o options) error {
	for _, size := range o.sizes {
		var failed error
		err := lab.Run(func(t lab.T) {
			s, err := newServer(t, size)
			if err != nil {
				t.Fatalf("fill an API server with %d Services: %v", size, err)
			}
			for _, k := range kinds() {
				if slices.Contains(o.proxies, k.name) {
					failed = errors.Join(failed, measureProxy(s, o, k))
				}
			}
		})
		if err := errors.Join(failed, err); err != nil {
			return err
		}
	}
	return nil
}

// measureProxy measures one proxy. If the proxy is too slow, that is a result.
func measureProxy(s *server, o options, k kind) error {
	var failed error
	err := lab.Run(func(t lab.T) {
		n, err := newNode(t, s, o, k)
		if err != nil {
			t.Fatalf("build a node: %v", err)
		}
		r := &result{
			Services: s.Services, Proxy: k.name, Versions: n.versions(), When: time.Now().UTC().Truncate(time.Second),
			Values: map[string]float64{},
		}
		failed = n.measure(r)
		if late, ok := errors.AsType[harness.Late](failed); ok {
			progress("%s, %d Services: %v", k.name, s.Services, failed)
			r.NotReached = fmt.Sprintf("%s: not within %v", late.What, late.Limit)
			failed = save(o.results, r)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("measure %s with %d Services: %w", k.name, s.Services, err)
	}
	return nil
}

// progress prints how far the run is.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
