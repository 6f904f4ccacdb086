//go:build linux

package filled

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// What all Services have in common.
const (
	Namespace   = "bench"
	Endpoints   = 3 // of a Service
	ServicePort = 80
	PodPort     = 8080 // where pods listen

	// ServiceCIDR is the range of cluster IPs.
	ServiceCIDR = "172.16.0.0/12"

	// Largest bounds the number of Services.
	Largest = 1_000_000
)

// ServiceName returns the name of Service i.
func ServiceName(i int) string { return fmt.Sprintf("service-%07d", i) }

// ClusterIP returns the address of Service i. The API server's own comes first.
func ClusterIP(i int) netip.Addr {
	n := uint32(i) + 256
	return netip.AddrFrom4([4]byte{172, 16 + byte(n>>16), byte(n >> 8), byte(n)})
}

// Target returns the address that clients of Service i connect to.
func Target(i int) netip.AddrPort { return netip.AddrPortFrom(ClusterIP(i), ServicePort) }

// PodIP returns the address of endpoint j of Service i. No pod has it.
func PodIP(i, j int) netip.Addr {
	n := uint32(i)*8 + uint32(j)
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// servicesPerNode is how many Services have their pods on the same node, so that no node has more
// than the 110 pods that a kubelet allows.
const servicesPerNode = 110 / Endpoints

// nodeOf returns the name of the node of an endpoint: NodeName for the PodIPs of the first Services, and for all
// other addresses, which come after the addresses of the largest Service.
func nodeOf(endpoint netip.Addr) string {
	node := number(endpoint) / 8 / servicesPerNode
	if node == 0 || number(endpoint) > number(PodIP(Largest, 0)) {
		return NodeName
	}
	return fmt.Sprintf("node-%05d", node)
}

// number returns the last three bytes of an address as a number.
func number(a netip.Addr) int {
	ip := a.As4()
	return int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
}

func meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: Namespace, Name: name, Labels: labels,
		UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
	}
}

// Service returns Service i as completed and stored by the API server.
func Service(i int) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	app := map[string]string{"app": ServiceName(i)}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(ServiceName(i), app),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ClusterIP(i).String(), ClusterIPs: []string{ClusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &cluster, Selector: app,
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: ServicePort, TargetPort: intstr.FromInt32(PodPort)},
			},
		},
	}
}

// addressObject returns the object in which the API server allocates a cluster IP.
func addressObject(i int) *networkingv1.IPAddress {
	o := &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: meta(ClusterIP(i).String(), map[string]string{
			networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}),
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: Namespace, Name: ServiceName(i),
		}},
	}
	o.Namespace = ""
	return o
}

// SliceName returns the name of EndpointSlice n of Service i.
func SliceName(i, n int) string { return fmt.Sprintf("%s-%05d", ServiceName(i), n) }

// Slice returns EndpointSlice n of Service i, as the EndpointSlice controller writes it.
func Slice(i, n int, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	http, port, tcp, yes, no := "http", int32(PodPort), corev1.ProtocolTCP, true, false
	es := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: meta(SliceName(i, n), map[string]string{
			discoveryv1.LabelServiceName: ServiceName(i),
			discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
		}),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port, Protocol: &tcp}},
	}
	for _, a := range addrs {
		node := nodeOf(a)
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: Namespace, Name: ServiceName(i) + "-" + a.String(), UID: uuid.NewUUID(),
			},
		})
	}
	return es
}
