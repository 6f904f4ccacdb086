// Package rules holds the rules that Sluice makes in mode iptables against those
// of the real kube-proxy, whole dumps of them, in both variants of iptables and
// for both IP families.
//
// testdata/objects has what the rules are about; every other folder of testdata
// is a case: a configuration and the rules that kube-proxy made of it. Where a
// kube-proxy is to be had (see test/takeover) they are recorded anew by
//
//	go test -tags record -run TestRecord ./test/rules
//
// The objects are few, so that kube-proxy is not in the mode for large clusters,
// in which it leaves comments on endpoints out: that begins with more than 1000.
package rules
