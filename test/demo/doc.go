// Command sluice-demo shows the real sluice binary at work: it builds a little
// cluster in network namespaces, runs sluice in one of its nodes on a copy of
// examples/, sends real requests, and prints what it measured in this run.
//
// At first the node is served by what a real kube-proxy left for examples/. That
// is recorded in testdata, and is recorded anew, when examples/ change, by
//
//	KUBE_PROXY=path go test -tags record -run TestRecord ./test/demo
//
// The machine's own network is not touched. Everything lives in the namespaces
// and mounts of this process and goes with it, however it ends.
//
// It exits with 0 if all it set out to show was so, 1 if not, 2 if it cannot
// run here.
package main
