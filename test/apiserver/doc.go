// Package apiserver tests Sluice against a real kube-apiserver and etcd, and
// brings what such tests need: the two servers, and Sluice as a client of them.
//
// KUBEBUILDER_ASSETS names the folder with the two programs; `make test-assets`
// makes one. Without it the tests fail. With -short there are no tests to run,
// which go test says.
//
// No controllers run: a test makes the EndpointSlices and Nodes it wants.
//
// It is for programs that lab.Enter or lab.Main put into namespaces: the servers
// listen on the loopback interface there, and keep their files in its /run.
package apiserver
