// Package takeover tests that Sluice takes over a node from kube-proxy, from any mode of kube-proxy to any mode of
// Sluice, that kube-proxy can take it back, and that Sluice switches between its modes. Meanwhile clients connect: no
// open connection breaks, and no new one fails.
//
// Tests of kube-proxy's mode ipvs need a kernel with IPVS; test/uml runs them on one.
//
// KUBE_PROXY is the path of the real program; the default is in the folder KUBEBUILDER_ASSETS, into which `make
// test-assets` puts it. The test of the clean-up loads rules of all its modes from testdata, which are recorded with:
//
//	go test -tags record -run TestRecord ./test/takeover
package takeover
