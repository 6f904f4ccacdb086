package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Connected sockets stay on the backends of a DNS Service, but not once it has session affinity: packets serve it
// then, and a socket that sends to its address would get no answer.
func TestPoolsOfConnectedSockets(t *testing.T) {
	svc := &route.Service{Name: cluster.Name{Namespace: "kube-system", Name: "dns"}}
	svc.Ports = []route.Port{
		{
			Protocol: cluster.UDP, Family: route.IPv4,
			Frontends: []route.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 53}},
		},
	}
	if got := udpPools(svc); len(got) != 2 {
		t.Errorf("pools %v, want two", got)
	}
	svc.Ports[0].Affinity = time.Hour
	if got := udpPools(svc); len(got) != 0 {
		t.Errorf("with session affinity: pools %v, want none", got)
	}
}
