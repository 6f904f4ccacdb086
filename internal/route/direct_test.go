package route

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// direct returns the compiled port of a Service with a load balancer address and a NodePort.
func direct(t *testing.T, opt Options, change func(*cluster.Service), list string) Port {
	t.Helper()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "web"}, Type: cluster.LoadBalancer, Direct: true,
		ClusterIPs: ips("172.30.0.1"), LoadBalancerIPs: ips("198.51.100.1"), ExternalIPs: ips("198.51.100.2"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
	}
	change(svc)
	slice := &cluster.Slice{
		Name: cluster.Name{Namespace: "default", Name: "web-1"}, Service: svc.Name,
		Ports: []cluster.SlicePort{{Protocol: svc.Ports[0].Protocol, Port: 8080}}, Endpoints: endpoints(t, list),
	}
	opt.Detector = clusterCIDR()
	c := NewCompiler(opt)
	c.Compile(cluster.Delta{
		Facts:    &cluster.Facts{Node: nodeA()},
		Services: []cluster.State{{Name: svc.Name, Service: svc, Slices: []*cluster.Slice{slice}}},
	})
	return c.Table().Services[svc.Name].Ports[0]
}

func unchanged(*cluster.Service) {}

// Clients outside reach backends on this node without source NAT by external addresses, and all backends as before if
// there are none here. NodePorts and the clusterIP are served as before.
func TestDirect(t *testing.T) {
	on := Options{Direct: true}
	today, local := Action{Pool: Cluster, Masquerade: true}, Action{Pool: Local}
	for _, c := range []struct {
		name, endpoints string
		opt             Options
		change          func(*cluster.Service)
		owners          []Owner
		want            Action
	}{
		{
			"here and elsewhere", "10.1.0.1 @A\n10.1.0.2 @B\n10.1.0.3 @B", on, unchanged,
			[]Owner{{"A", 1}, {"B", 2}},
			local,
		},
		{"elsewhere", "10.1.0.2 @B", on, unchanged, []Owner{{"B", 1}}, today},
		{"hints do not count", "10.1.0.1 @A z=a\n10.1.0.2 @B z=b", on, unchanged, []Owner{{"A", 1}, {"B", 1}}, local},
		{"terminating ones if no other is ready", "10.1.0.2 @B st", on, unchanged, []Owner{{"B", 1}}, today},
		{"ready ones first", "10.1.0.1 @A\n10.1.0.2 @B st", on, unchanged, []Owner{{"A", 1}}, local},
		{
			"weights", "10.1.0.1 @A\n10.1.0.2 @B", on,
			func(s *cluster.Service) { s.Weights = map[string]uint16{"B": 0, "A": 7} },
			[]Owner{{"A", 7}},
			local,
		},
		{"no node", "10.1.0.1", on, unchanged, nil, today},
		{"not requested", "10.1.0.1 @A", on, func(s *cluster.Service) { s.Direct = false }, nil, today},
		{"no such plane", "10.1.0.1 @A", Options{}, unchanged, nil, today},
		{"policy Local", "10.1.0.1 @A", on, func(s *cluster.Service) { s.ExternalLocal = true }, nil, local},
		{"SCTP", "10.1.0.1 @A", on, func(s *cluster.Service) { s.Ports[0].Protocol = cluster.SCTP }, nil, today},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := direct(t, c.opt, c.change, c.endpoints)
			got := map[netip.Addr]Action{}
			for _, f := range p.Frontends {
				if f.External() {
					got[f.Addr] = f.Others
				}
				if f.Kind == NodePort && c.want == local && len(c.owners) > 0 && f.Others != today {
					t.Errorf("the NodePort has %+v, want %+v", f.Others, today)
				}
			}
			want := map[netip.Addr]Action{ip("198.51.100.1"): c.want, ip("198.51.100.2"): c.want}
			compareAddr := cmpopts.EquateComparable(netip.Addr{})
			if diff := cmp.Diff(want, got, compareAddr) + cmp.Diff(c.owners, p.Owners); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
