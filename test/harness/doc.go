// Package harness runs Sluice and other programs as processes on the hosts of a lab: it builds and starts them, reads
// their logs, sends requests to their servers, stops them, and measures their memory and CPU time. Tests, the demo and
// the benchmarks use it. Package test/apiserver adds a real kube-apiserver.
//
// It is for programs in the namespaces of lab.Enter or lab.Main: /run is private to them,
// and their child processes end with them.
package harness
