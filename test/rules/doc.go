// Package rules compares the rules that Sluice writes in mode iptables with the rules of the real kube-proxy, in both
// variants of iptables and for both IP families.
//
// testdata/objects has the Kubernetes objects. Every other folder of testdata is a case: a configuration, and the rules
// that kube-proxy wrote for it. With a real kube-proxy (see test/takeover) they are recorded again by
//
//	go test -tags record -run TestRecord ./test/rules
//
// There are fewer than 1000 endpoints, because with more kube-proxy switches to its mode
// for large clusters and omits the comments of endpoints.
package rules
