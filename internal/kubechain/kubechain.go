// Package kubechain recognizes the chains that kube-proxy of any version and mode
// makes, and Sluice where it uses the same names, by their names.
// Those of kubelet (KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY,
// KUBE-IPTABLES-HINT) are not among them.
package kubechain

import (
	"slices"
	"strings"
)

// Proxy reports whether a proxy makes a chain of this name. Behind the prefixes
// is a hash; kube-proxy, too, deletes what begins with them.
func Proxy(name string) bool {
	return shared(name) || KubeProxyAlone(name) || SluiceAlone(name)
}

// shared reports whether both make a chain of this name.
func shared(name string) bool {
	return hasPrefix(name, "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-") ||
		slices.Contains([]string{
			"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ",
			"KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		}, name)
}

// KubeProxyAlone reports whether kube-proxy makes a chain of this name, and
// Sluice never does.
func KubeProxyAlone(name string) bool {
	return hasPrefix(name, "KUBE-XLB-", "KUBE-PORTALS-") || slices.Contains([]string{
		"KUBE-PROXY-CANARY",
		// Mode ipvs; the last until Kubernetes 1.9.
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
		"KUBE-IPVS-OUT-FILTER", "KUBE-FIRE-WALL",
		// Mode userspace.
		"KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST", "KUBE-NODEPORT-NON-LOCAL",
	}, name)
}

// SluiceAlone reports whether Sluice makes a chain of this name, and kube-proxy
// never does.
func SluiceAlone(name string) bool { return name == "KUBE-MARK-MASQ-NOT-POD" }

func hasPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
