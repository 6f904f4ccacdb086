// Package takeover tests that Sluice takes a node over from kube-proxy with
// traffic running, from any mode of kube-proxy to any of Sluice, and gives it back,
// and that Sluice itself goes from one mode to another: no connection that exists
// breaks, and none that is made fails.
//
// KUBE_PROXY names the real program; if it is not set it is taken from the
// folder KUBEBUILDER_ASSETS, where `make test-assets` puts it. Where there is
// none, what it leaves in the kernel comes from testdata, recorded from it:
//
//	go test -tags record -run TestRecord ./test/takeover
package takeover
