// Package apiserver tests Sluice against a real kube-apiserver and etcd. It also provides
// them to other tests, and Sluice as their client.
//
// KUBEBUILDER_ASSETS is the folder with the two programs; `make test-assets` creates it.
// Without it the tests fail. With -short no test runs.
//
// No controllers run: tests create the EndpointSlices and Nodes that they need.
//
// It is for programs in the namespaces of lab.Enter or lab.Main: the servers listen on the
// loopback interface there, and keep their files in its /run.
package apiserver
