package explain

import (
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A name that very many namespaces have is answered in a line.
func TestManyServicesOfOneName(t *testing.T) {
	store := cluster.NewStore()
	for i := range 20 {
		store.SetService(&cluster.Service{
			Name: cluster.Name{Namespace: fmt.Sprintf("ns-%02d", i), Name: "web"}, ClusterIPs: addrs("10.96.0.1"),
		})
	}
	c := route.NewCompiler(usual())
	c.Compile(store.Take())
	q, err := Parse("node", "web")
	if err != nil {
		t.Fatal(err)
	}
	v := View{View: proxy.View{Routes: c.Snapshot(), Started: true}, Plane: pathless(nftables.Kind())}
	const want = "there are 20 Services called web: give one of ns-00/web, ns-01/web, ns-02/web, ns-03/web, ns-04/web, " +
		"ns-05/web, ns-06/web, ns-07/web, 12 more"
	if got := Ask(v, q).Unanswered; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
