// Command sluice-demo demonstrates the real sluice binary: it builds a small cluster in network namespaces, runs
// sluice on one of its nodes with a copy of examples/, sends real requests, and prints the measurements of this run.
//
// At first the rules of a real kube-proxy serve the node. They are recorded in
// testdata. After a change of examples/ record them again:
//
//	KUBE_PROXY=path go test -tags record -run TestRecord ./test/demo
//
// With -svg it also writes an animation of the run. The one in the README is made with
//
//	bin/sluice-demo -svg docs/demo.svg
//
// It does not change the network of the machine. Everything is in the namespaces and mounts of this process and ends
// with it, even if it is killed, except the cgroup in which mode ebpf balances: the process that waits in lab.Enter
// removes it, or the next run if that one is killed too.
//
// It exits with 0 if all its checks pass, with 1 if not, and with 2 if it cannot run on this machine.
package main
