// Package deploy tests what is in the folder deploy, and the guides to it, with
// the programs that people use on it: manifests against a real kube-apiserver,
// the privileges they give by running Sluice with no more, queries against a
// real Prometheus, the image by its Dockerfile, and the commands of the guides
// by running them.
//
// TEST_TOOLS names the folder with helm, kubectl, prometheus and promtool, and
// KUBEBUILDER_ASSETS the one with kube-apiserver and etcd; hack/test-tools.sh and
// hack/test-assets.sh make them. Without them the tests fail. With -short there
// are no tests to run, which go test says.
//
//	go test ./test/deploy -run TestManifestsAreTheChart -update
//
// makes deploy/kubernetes anew after a change of the chart.
package deploy
