//go:build linux

// Command versus measures Sluice and kube-proxy, one after the other, each on a
// node of its own, as clients of one real API server that holds many Services,
// with real connections. docs/benchmarks.md says what each number is.
//
//	go run ./test/bench/versus                                  # everything: hours, most of them kube-proxy's
//	go run ./test/bench/versus -quick                           # a small one, to see that it works
//	go run ./test/bench/versus -sizes 10000 -proxies sluice,nftables,iptables
//	go run ./test/bench/versus -sizes 1000,100000 -proxies sluice -parts start,change
//	go run ./test/bench/versus -report                          # print the tables of what was measured so far
//
// KUBEBUILDER_ASSETS names the folder with kube-apiserver and etcd (make
// test-assets), KUBE_PROXY the program kube-proxy. Without KUBE_PROXY Sluice is
// measured alone. Whatever a part has measured is in -results as soon as the
// part is over, beside what other runs have put there, so that a run may be cut
// off, or made in pieces.
//
// It needs root, or unprivileged user namespaces. It touches nothing outside of
// the network namespaces it makes, and leaves nothing when it is killed.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/sluice-proxy/sluice/test/apiserver"
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

// run measures if asked to, and prints all results there are.
func run(o options, w io.Writer) error {
	if !o.report {
		if err := apiserver.Assets(); err != nil {
			return err
		}
		if err := lab.Enter(); err != nil {
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
