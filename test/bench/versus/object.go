//go:build linux

package main

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

const (
	namespace   = "bench"
	endpoints   = 3 // of a Service
	servicePort = 80
	podPort     = 8080 // where pods listen

	// serviceCIDR is the range of cluster IPs.
	serviceCIDR = "172.16.0.0/12"

	// largest bounds the number of Services.
	largest = 1_000_000

	// rollingService is the number of the Service of the rolling update.
	rollingService = largest
)

func serviceName(i int) string { return fmt.Sprintf("service-%07d", i) }

// clusterIP returns the address of Service i. The API server's own comes first.
func clusterIP(i int) netip.Addr {
	n := uint32(i) + 256
	return netip.AddrFrom4([4]byte{172, 16 + byte(n>>16), byte(n >> 8), byte(n)})
}

// target returns the address that clients of Service i connect to.
func target(i int) netip.AddrPort { return netip.AddrPortFrom(clusterIP(i), servicePort) }

// podIP returns the address of endpoint j of Service i. No pod has it.
func podIP(i, j int) netip.Addr {
	n := uint32(i)*8 + uint32(j)
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: labels,
		UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
	}
}

// serviceObject returns Service i as completed and stored by the API server.
func serviceObject(i int) *corev1.Service {
	single, cluster, app := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster, map[string]string{"app": serviceName(i)}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(serviceName(i), app),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP(i).String(), ClusterIPs: []string{clusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &cluster, Selector: app,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(podPort)}},
		},
	}
}

// addressObject returns the object in which the API server allocates a cluster IP.
func addressObject(i int) *networkingv1.IPAddress {
	o := &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: meta(clusterIP(i).String(), map[string]string{
			networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}),
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: namespace, Name: serviceName(i),
		}},
	}
	o.Namespace = ""
	return o
}

// sliceName returns the name of EndpointSlice n of Service i.
func sliceName(i, n int) string { return fmt.Sprintf("%s-%05d", serviceName(i), n) }

// sliceObject returns EndpointSlice n of Service i, like that of the EndpointSlice controller.
func sliceObject(i, n int, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	http, port, tcp, yes, no, node := "http", int32(podPort), corev1.ProtocolTCP, true, false, nodeName
	es := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: meta(sliceName(i, n), map[string]string{
			discoveryv1.LabelServiceName: serviceName(i),
			discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
		}),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port, Protocol: &tcp}},
	}
	for _, a := range addrs {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: namespace, Name: serviceName(i) + "-" + a.String(), UID: uuid.NewUUID(),
			},
		})
	}
	return es
}
