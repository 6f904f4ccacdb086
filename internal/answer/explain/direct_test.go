package explain

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// The answer for a client outside names the nodes that may serve it; others are served as without the annotation.
func TestDirect(t *testing.T) {
	local, all := route.Action{Pool: route.Local}, route.Action{Pool: route.Cluster, Masquerade: true}
	owners := []route.Owner{{Node: "a"}, {Node: "b"}}
	many := []route.Owner{{Node: "a"}, {Node: "b"}, {Node: "c"}, {Node: "d"}, {Node: "e"}, {Node: "f"}, {Node: "g"}}
	const by = "external: direct: a hash of the client decides which node serves a connection "
	for _, c := range []struct {
		owners []route.Owner
		kind   route.FrontendKind
		others route.Action
		class  Who
		want   Policy
	}{
		{owners, route.LoadBalancer, local, Outside, Policy{
			"Direct", by + "(a, b); those that stay on this node reach endpoints on it",
		}},
		{many, route.ExternalIP, all, Outside, Policy{
			"Direct", by + "(a, b, c, d, e, 2 others); this node has no endpoint, and those that stay on it, " +
				"because it reaches no owner, reach any",
		}},
		{owners, route.LoadBalancer, local, Pod, Policy{
			"ShortCircuit", "external: direct is for clients outside of the cluster; " +
				"a pod reaches any usable endpoint of the Service",
		}},
		{owners, route.NodePort, all, Outside, Policy{
			"Cluster", "externalTrafficPolicy Cluster: any usable endpoint of the Service",
		}},
	} {
		frontend := &route.Frontend{Kind: c.kind, Pods: route.Action{}, Node: all, Others: c.others}
		f := found{port: &route.Port{Owners: c.owners}, frontend: frontend}
		if got := policyOf(f, client{Client: Client{CountsAs: c.class}}); got != c.want {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}
}
