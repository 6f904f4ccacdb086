package kubechain

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	const kubeProxy, sluice = 1, 2
	for name, creators := range map[string]int{
		"KUBE-SERVICES": kubeProxy | sluice, "KUBE-SEP-ID6YWIT3F6WNZ47P": kubeProxy | sluice,
		"KUBE-PROXY-CANARY": kubeProxy, "KUBE-XLB-ID6YWIT3F6WNZ47P": kubeProxy, "KUBE-LOAD-BALANCER": kubeProxy,
		"KUBE-PORTALS-HOST": kubeProxy | sluice, "KUBE-NODEPORT-NON-LOCAL": kubeProxy | sluice, "KUBE-NODE-PORT": kubeProxy,
		"KUBE-PORTALS-OF-OTHERS": 0, "KUBE-MARK-MASQ-NOT-POD": sluice, "KUBE-IPVS-SHORT-CUT": sluice,
		"KUBE-FIREWALL": 0, "KUBE-MARK-DROP": 0, "KUBE-IPTABLES-HINT": 0, "KUBE-KUBELET-CANARY": 0,
		"KUBE-SERVICES-OF-OTHERS": 0, "DOCKER": 0, "": 0,
	} {
		if got := Proxy(name); got != (creators != 0) {
			t.Errorf("Proxy(%q) = %v", name, got)
		}
		if got := SluiceAlone(name); got != (creators == sluice) {
			t.Errorf("SluiceAlone(%q) = %v", name, got)
		}
		if want := strings.HasPrefix(name, "KUBE-NODEPORT-") || name == "KUBE-PORTALS-HOST"; Userspace(name) != want {
			t.Errorf("Userspace(%q) = %v", name, !want)
		}
	}
}
