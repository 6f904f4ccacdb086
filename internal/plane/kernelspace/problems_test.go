package kernelspace

import (
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// sctp is a dual-stack Service with TCP at port 80, and SCTP at some ports.
func sctp(ports ...uint16) *cluster.Service {
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: "web"}, Type: cluster.NodePort,
		ClusterIPs: planetest.Addrs("172.30.0.1", "fd00:172:30::1"),
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	for i, port := range ports {
		svc.Ports = append(svc.Ports, cluster.ServicePort{
			Name: string(rune('a' + i)), Protocol: cluster.SCTP, Port: port, NodePort: 30000 + port,
		})
	}
	return svc
}

// HNS does not balance SCTP. Each such port of a Service is a problem that is reported once, whether a change or a
// comparison finds it, and again if the Service is created again.
func TestPortsWithSCTP(t *testing.T) {
	problem := func(port string) route.Problem {
		return route.Problem{
			Object: "Service ns/web", Field: "spec.ports", Value: port,
			Reason: "HNS does not balance SCTP: the port is not served in mode kernelspace",
		}
	}
	fake := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	opt := fake.options()
	var reported []route.Problem
	opt.Report = func(list []route.Problem) { reported = append(reported, list...) }
	s := &story{
		TB: t, subject: fake, store: cluster.NewStore(), compiler: route.NewCompiler(options()), plane: New(fake.fake, opt),
	}
	for _, step := range []struct {
		svc   *cluster.Service // nil: it is deleted
		write func() []string
		want  []route.Problem
	}{
		{sctp(50), s.compared, []route.Problem{problem("50/SCTP")}},
		{sctp(50), s.compared, nil},
		{sctp(50, 60), s.changed, []route.Problem{problem("60/SCTP")}},
		{sctp(60), s.changed, nil},
		{sctp(), s.changed, nil},
		{sctp(60), s.compared, []route.Problem{problem("60/SCTP")}},
		{nil, s.compared, nil},
		{sctp(60), s.changed, []route.Problem{problem("60/SCTP")}},
	} {
		reported = nil
		if step.svc != nil {
			s.store.SetService(step.svc)
		} else {
			s.store.DeleteService(cluster.Name{Namespace: "ns", Name: "web"})
		}
		step.write()
		if !reflect.DeepEqual(reported, step.want) {
			t.Errorf("%+v: reported %+v, want %+v", step.svc, reported, step.want)
		}
	}
}
