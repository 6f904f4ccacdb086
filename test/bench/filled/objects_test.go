//go:build linux

package filled

import (
	"net/netip"
	"testing"
)

// No node has more pods than a kubelet allows, and the pods that answer are on the only Node that exists.
func TestNodesOfEndpoints(t *testing.T) {
	pods := map[string]int{}
	for i := range 100_000 {
		for j := range Endpoints {
			pods[*Slice(i, 0, PodIP(i, j)).Endpoints[0].NodeName]++
		}
	}
	for node, n := range pods {
		if n > 110 {
			t.Fatalf("%s has %d pods", node, n)
		}
	}
	if pods[NodeName] == 0 {
		t.Errorf("%s has no pods", NodeName)
	}
	if got := *Slice(90_000, 0, netip.MustParseAddr("10.180.1.1")).Endpoints[0].NodeName; got != NodeName {
		t.Errorf("a pod that answers is on %s", got)
	}
}
