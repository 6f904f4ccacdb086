// Package deploy tests the files in the folder deploy, and the guides to them, with the programs of users: it applies
// the manifests to a real kube-apiserver, runs Sluice with exactly the privileges that they grant, sends the queries of
// dashboard and alerts to a real Prometheus, builds the images of the Dockerfile, and runs the commands of the guides.
//
// TEST_TOOLS is the folder with helm, kubectl, prometheus and promtool, and
// KUBEBUILDER_ASSETS the one with kube-apiserver and etcd; hack/test-tools.sh and
// hack/test-assets.sh create them. Without them the tests fail. With -short no test runs.
//
// After a change of the chart, regenerate deploy/kubernetes with:
//
//	go test ./test/deploy -run TestManifestsAreTheChart -update
package deploy
