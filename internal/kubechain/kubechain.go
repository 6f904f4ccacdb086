// Package kubechain recognizes the chains of kube-proxy, of any version and mode, and of Sluice's plane iptables and
// its variant, by their names. Many names are the same. It does not recognize the chains of kubelet (KUBE-FIREWALL,
// KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT).
package kubechain

import (
	"slices"
	"strings"
)

// Proxy reports whether kube-proxy or Sluice creates chains with this name. After a prefix
// the name has a hash; kube-proxy also deletes every chain with such a prefix.
func Proxy(name string) bool {
	return SluiceAlone(name) || Userspace(name) ||
		hasPrefix(name, "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-") ||
		slices.Contains([]string{
			"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ",
			"KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
			// Mode ipvs; the last until Kubernetes 1.9.
			"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
			"KUBE-IPVS-OUT-FILTER", "KUBE-FIRE-WALL",
		}, name)
}

// Userspace reports whether kube-proxy and Sluice create chains with this name in mode
// userspace only. Since Kubernetes 1.26 kube-proxy neither uses nor removes them.
func Userspace(name string) bool {
	return slices.Contains([]string{
		"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST",
		"KUBE-NODEPORT-NON-LOCAL",
	}, name)
}

// SluiceAlone reports whether Sluice creates chains with this name, and kube-proxy never does.
func SluiceAlone(name string) bool {
	return slices.Contains([]string{"KUBE-MARK-MASQ-NOT-POD", "KUBE-IPVS-SHORT-CUT", "KUBE-NOT-LOCAL"}, name)
}

func hasPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
