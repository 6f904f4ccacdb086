package userspace_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// A tenant makes the address of its Service an endpoint of that Service. One datagram takes few flows.
func TestAServiceThatIsItsOwnEndpoint(t *testing.T) {
	const most = 20
	s := cluster.NewStore()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "loop"}, ClusterIPs: planetest.Addrs("172.30.0.66"),
		Ports: []cluster.ServicePort{{Protocol: cluster.UDP, Port: 53}},
	}
	s.SetService(svc)
	s.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "shop", Name: "loop-4"}, Service: svc.Name,
		Ports:     []cluster.SlicePort{{Protocol: cluster.UDP, Port: 53}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint("172.30.0.66", "a")},
	})
	n := nodeWith(t, s)
	client := n.Pod(n.NodeA, "10.180.0.9", "fd00:10:180::9")
	client.Try(lab.Probe{Protocol: lab.UDP, To: netip.MustParseAddrPort("172.30.0.66:53"), Timeout: lab.Soon})
	time.Sleep(time.Second)
	for _, socket := range n.opened.Sockets() {
		if socket.Open > most {
			t.Errorf("one client has %d flows", socket.Open)
		}
		t.Log(socket.Open)
	}
}
