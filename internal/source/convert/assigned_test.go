package convert

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// A Service of a manifest without a clusterIP always gets the same one.
func TestServiceWithoutClusterIP(t *testing.T) {
	none := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }
	families := func(list ...corev1.IPFamily) func(*corev1.Service) {
		return func(s *corev1.Service) { none(s); s.Spec.IPFamilies = list }
	}
	runServices(t, Converter{AssignClusterIPs: true}, []serviceCase{
		{name: "no families", in: families(), want: func(s *cluster.Service) { s.ClusterIPs = addrs("198.18.203.146") }},
		{name: "both families", in: families(corev1.IPv6Protocol, corev1.IPv4Protocol), want: func(s *cluster.Service) {
			s.ClusterIPs = addrs("fd8e:51fc:aa03::41d6:89bc", "198.18.203.146")
		}},
		{name: "one that cannot be used stays an error", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0", nil
		}, want: onlyIgnored("no clusterIP"), problems: []string{"spec.clusterIPs[0] 10.96.0", "spec.clusterIP "}},
	})
}
