// Package harness runs Sluice, and other programs, as processes on the hosts of a
// lab: it builds and starts them, reads what they log, asks their servers, ends
// them and measures their memory and CPU time. Tests, the demo and the benchmarks
// share it. Package test/apiserver adds a real kube-apiserver.
//
// It is for programs that lab.Enter or lab.Main put into namespaces: /run is
// private to them, and processes end with them.
package harness
