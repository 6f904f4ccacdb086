package convert

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestNode(t *testing.T) {
	cases := []struct {
		name     string
		in       corev1.Node
		want     cluster.Node
		problems []string
	}{
		{"internal before external, in order", corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: "n1"},
				{Type: corev1.NodeExternalIP, Address: "2001:db8::1"},
				{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
				{Type: corev1.NodeInternalIP, Address: "10.0.0.01"},
				{Type: corev1.NodeInternalIP, Address: "10.0.0.2"},
				{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
			}},
		}, cluster.Node{Zone: "a", Addresses: addrs("10.0.0.1", "10.0.0.2", "2001:db8::1", "192.0.2.1")}, nil},
		{"all podCIDRs", corev1.Node{Spec: corev1.NodeSpec{
			PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd01::/64", "10.2.0.0/24", "x"},
		}}, cluster.Node{PodCIDRs: cidrs("10.1.0.0/24", "fd01::/64", "10.2.0.0/24")}, []string{"spec.podCIDRs[3] x"}},
		{
			"only podCIDR",
			corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"}},
			cluster.Node{PodCIDRs: cidrs("10.1.0.0/24")},
			nil,
		},
		{"bad address", corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "n1.example"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
		}}}, cluster.Node{Addresses: addrs("fd00::1")}, []string{"status.addresses[0].address n1.example"}},
		{"an empty Node", corev1.Node{}, cluster.Node{}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Name, tc.want.Name = "n1", "n1"
			got, problems := Converter{}.Node(&tc.in)
			if d := diff(&tc.want, got); d != "" {
				t.Errorf("Node (-want +got):\n%s", d)
			}
			if d := diff(tc.problems, fieldsOf(t, "Node n1", problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestServiceCIDR(t *testing.T) {
	got, problems := Converter{}.ServiceCIDR(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd00:96::/112", "10.96.0.0/99"}},
	})
	if d := diff(cidrs("10.96.0.0/12", "fd00:96::/112"), got); d != "" {
		t.Errorf("ServiceCIDR (-want +got):\n%s", d)
	}
	if d := diff([]string{"spec.cidrs[2] 10.96.0.0/99"}, fieldsOf(t, "ServiceCIDR kubernetes", problems)); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}
